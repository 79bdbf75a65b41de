"""Certificates of an authority that exists for these tests alone, and files with a control key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: of the authority that clients trust, and of a server on 127.0.0.1."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def made_in(cls, folder: Path) -> TlsFiles:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        files = cls(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")
        authority.cert_pem.write_to_path(str(files.authority))
        issued.cert_chain_pems[0].write_to_path(str(files.certificate))
        issued.private_key_pem.write_to_path(str(files.key))
        files.key.chmod(0o600)
        return files

    @property
    def flags(self) -> tuple[object, ...]:
        """Of `rrl-serve`."""
        return ("--tls-cert", self.certificate, "--tls-key", self.key)

    def context(self) -> ssl.SSLContext:
        """A client's."""
        return ssl.create_default_context(cafile=str(self.authority))


def key_file_in(folder: Path, key: str) -> Path:
    """A file with a control key, which nobody else may read."""
    file = folder / "control.key"
    file.write_text(key)
    file.chmod(0o600)
    return file
