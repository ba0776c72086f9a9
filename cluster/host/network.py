"""Find the address by which other nodes reach this one."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence

INTERFACE = "BIGBATCH_INTERFACE"
SUFFIX = "BIGBATCH_HOST_SUFFIX"
SIOCGIFADDR = 0x8915


def own_address(name: str, env: Mapping[str, str] = os.environ) -> str:
    """This node's IPv4 address. ``name``: Slurm's name of the node.

    BIGBATCH_INTERFACE names a network interface (``ib0``). BIGBATCH_HOST_SUFFIX is appended to the node's name to
    get its name on the interconnect (JUWELS: ``i``). Raises OSError, in one line, if neither name nor route gives
    an address.
    """
    if env.get(INTERFACE):
        return _address_of_interface(env[INTERFACE])
    if env.get(SUFFIX):
        short, dot, domain = name.partition(".")
        return _resolve(f"{short}{env[SUFFIX]}{dot}{domain}")
    try:
        address = _resolve(name)
    except OSError:
        address = "127.0.0.1"
    # Debian maps a host's own name to 127.0.1.1, which the other nodes cannot reach.
    return _address_of_route() if address.startswith("127.") else address


def _resolve(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise OSError(f"the name {name!r} has no IPv4 address ({error}). Set {SUFFIX} or {INTERFACE}.") from None


def _address_of_interface(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # The kernel takes 15 characters of a name (IFNAMSIZ), and returns the address at byte 20 (struct ifreq).
        request = struct.pack("256s", interface.encode()[:15])
        try:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24])
        except OSError:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise OSError(f"{INTERFACE} must have an IPv4 address; got {interface!r}. Write one of {known}.") from None


def _address_of_route() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing; the kernel only chooses a source address
        return str(probe.getsockname()[0])


def interface_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Keep gloo and NCCL, which may choose one that reaches no other node, on the profile's interface."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: env[INTERFACE] for name in names if env.get(INTERFACE) and name not in env}


def no_proxy_variables(hosts: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep connections to ``hosts`` and this machine away from the site's internet proxy."""
    # Programs differ in which of the two spellings they read.
    return {
        name: ",".join(filter(None, [env.get(name), "localhost", "127.0.0.1", *hosts]))
        for name in ("no_proxy", "NO_PROXY")
    }
