"""Tokens and certificates."""

from __future__ import annotations

import subprocess

from bigbatch.cluster.node import credentials


def test_a_token_is_fresh_and_private(tmp_path):
    first = credentials.make_token(tmp_path)
    text = first.read_text()
    assert len(text) == 64 and first.stat().st_mode & 0o777 == 0o600
    assert credentials.make_token(tmp_path).read_text() != text
    assert text not in str(credentials.credential_variables(first, None))
    credentials.remove_credentials(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_certificates_of_one_job_trust_each_other(tmp_path):
    authority = credentials.make_authority(tmp_path)
    node_process = credentials.make_certificate(authority, tmp_path / "n", ["n1", "localhost"], ["10.0.0.1"])
    verify = [
        "openssl",
        "verify",
        "-CAfile",
        str(node_process / "ca.crt"),
        "-verify_ip",
        "10.0.0.1",
        str(node_process / "node.crt"),
    ]
    assert subprocess.run(verify, capture_output=True).returncode == 0
    assert all(p.stat().st_mode & 0o077 == 0 for p in tmp_path.rglob("*.key"))
