"""The credentials of a job's Ray: a token, and with ``--tls`` certificates that only this job knows.

They never appear on a command line or in a log. Files have mode 0600, in folders with mode 0700.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bigbatch.base.atomic_files import PRIVATE, write_text

TOKEN_FILE = "token"
TLS_FOLDER = "tls"
DAYS = "30"


class CredentialError(RuntimeError):
    """Certificates cannot be made. The message is one line."""


def make_token(folder: Path) -> Path:
    """Write a new 256-bit token into ``folder``. Only its owner can read it."""
    path = folder / TOKEN_FILE
    write_text(path, secrets.token_hex(32), mode=PRIVATE)
    return path


def make_authority(folder: Path) -> Path:
    """A certificate authority for one job. Returns its folder. Raises CredentialError."""
    if shutil.which("openssl") is None:
        raise CredentialError("--tls needs the command openssl; got none on PATH. Load its module or leave --tls out.")
    tls = folder / TLS_FOLDER
    tls.mkdir(mode=0o700, exist_ok=True)
    _openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", DAYS, "-subj", "/CN=bigbatch job"),
        *("-keyout", str(tls / "ca.key"), "-out", str(tls / "ca.crt")),
    )
    return tls


def make_certificate(authority: Path, folder: Path, names: Sequence[str], addresses: Sequence[str]) -> Path:
    """A key and a certificate for one node's names and IPv4 addresses in ``folder``. Returns the folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    alternatives = [f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses]
    write_text(folder / "extensions", f"subjectAltName = {','.join(alternatives)}\n", mode=PRIVATE)
    _openssl(
        # -nodes: no pass phrase, as nobody is there to type one.
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=bigbatch node"),
        *("-keyout", str(folder / "node.key"), "-out", str(folder / "node.csr")),
    )
    _openssl(
        *("x509", "-req", "-in", str(folder / "node.csr"), "-days", DAYS, "-extfile", str(folder / "extensions")),
        *("-CA", str(authority / "ca.crt"), "-CAkey", str(authority / "ca.key")),
        *("-set_serial", str(secrets.randbits(63)), "-out", str(folder / "node.crt")),
    )
    shutil.copyfile(authority / "ca.crt", folder / "ca.crt")
    return folder


def driver_certificate(authority: Path | None, head: str, address: str) -> Path | None:
    """The certificate of processes that the job itself starts on the head; None without an authority."""
    if authority is None:
        return None
    return make_certificate(authority, authority / "driver", ["localhost", head], [address, "127.0.0.1"])


def credential_variables(token: Path, certificates: Path | None) -> dict[str, str]:
    """Variables with which a Ray process shows the job's credentials and demands them from others."""
    values = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    if certificates is not None:
        values["RAY_USE_TLS"] = "1"
        values["RAY_TLS_SERVER_CERT"] = str(certificates / "node.crt")
        values["RAY_TLS_SERVER_KEY"] = str(certificates / "node.key")
        values["RAY_TLS_CA_CERT"] = str(certificates / "ca.crt")
    return values


def remove_credentials(folder: Path) -> None:
    """Remove a job's credentials at its end. They are useless then."""
    (folder / TOKEN_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / TLS_FOLDER, ignore_errors=True)


def _openssl(*arguments: str) -> None:
    # openssl makes the key files itself: their mode follows from the umask alone.
    before = os.umask(0o077)
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CredentialError(f"openssl {arguments[0]} did not work: {error}. Leave --tls out.") from None
    finally:
        os.umask(before)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CredentialError(f"openssl {arguments[0]} failed: {lines[-1]}. Leave --tls out.")
