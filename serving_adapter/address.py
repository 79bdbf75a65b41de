"""Where a server is: one reading of HOST:PORT for all commands, and one way to write it.

| given | read as |
|---|---|
| `localhost:8500`, `GPU-Box.example.:8500` | a name, in lower case and without a dot at its end |
| `127.0.0.1:8500`, `[::1]:8500`, `[fe80::1%eth0]:8500` | an address, with its zone |
| `::1:8500` | the same as `[::1]:8500`: the last group is the port |
| `0.0.0.0:8500`, `[::]:8500` | loopback, as whoever calls cannot mean all addresses of a machine |
| `:8500` | loopback too |
| `unix:/run/serve.sock` | a socket of this machine |
| `dns:///`, `ipv4:`, `ipv6:` or `grpc://` before any of them | nothing: it says what is plain |

What is written for one is read as the same one by every command, and by gRPC.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

LOCALHOST = "localhost"
MAX_SOCKET_PATH_BYTES = 107
_SCHEMES = re.compile(r"(dns:/{0,3}|ipv[46]:|grpc://)(?=.+:)", re.IGNORECASE)
_OTHER_SCHEME = re.compile(r"(?!(?:grpc|dns|unix(?:-abstract)?):)[a-z][a-z0-9+._-]*://", re.IGNORECASE)
_UNIX = re.compile(r"unix(-abstract)?:(?://(?=/))?(.+)", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+")
_LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class ServerAddress:
    """A host and its port, or a socket of this machine, which has none."""

    host: str  # a name or an address, without brackets
    port: int
    unix: str = ""  # "unix:PATH" or "unix-abstract:NAME"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """ValueError, which says what was expected, for anything that the table above does not hold."""
        given = text.strip()
        if (unix := _UNIX.fullmatch(given)) is not None:
            if (length := len(os.fsencode(unix[2]))) > MAX_SOCKET_PATH_BYTES:
                raise ValueError(
                    f"must have a socket's path of at most {MAX_SOCKET_PATH_BYTES} bytes, as the system has "
                    f"it, got {length}: put the socket in a folder with a shorter path"
                )
            return cls(LOCALHOST, 0, f"unix{unix[1] or ''}:{unix[2]}")
        host, colon, port = _SCHEMES.sub("", given, count=1).rpartition(":")
        if not colon or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
            raise _not_an_address(text)
        return cls(_host(host, text), int(port))

    def __str__(self) -> str:
        return self.unix or f"{bracketed(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        """True if the host is surely this machine. No name is looked up to find out."""
        return bool(self.unix) or _is_loopback(self.host) or _is_own(self.host)

    @property
    def canonical(self) -> str:
        """One text for all the ways to write this machine."""
        if self.unix or not _is_loopback(self.host):
            return str(self)
        return f"{LOCALHOST}:{self.port}"

    def identities(self) -> frozenset[str]:
        """Every name of the server that can be found out. Two addresses are one server if they share one.

        The host's name is looked up, so that a name and its address are one.
        """
        if self.unix:
            return frozenset({self.canonical})
        hosts = {self.host}
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            hosts |= {str(each[4][0]) for each in found}
        addresses = [ServerAddress(host, self.port) for host in hosts]
        here = {f"{LOCALHOST}:{self.port}"} if any(address.is_local for address in addresses) else set()
        return frozenset(here.union(address.canonical for address in addresses))

    def several_addresses(self) -> list[str]:
        """Those of one family that the host's name has, where there is more than one; none for this machine.

        They may be several servers, of which each connection reaches any.
        """
        by_family: dict[int, set[str]] = {}
        if not self.is_local:
            with suppress(OSError, UnicodeError):
                for family, *_, place in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
                    by_family.setdefault(family, set()).add(str(place[0]))
        most = max(by_family.values(), key=len, default=set())
        is_here = any(_is_own(address) for address in most)
        return sorted(most) if len(most) > 1 and not is_here else []


def canonical(text: str) -> str:
    """The canonical text of a target; what is no address, such as `simulation`, as it is."""
    scheme, rest = scheme_of(text)
    try:
        return scheme + ServerAddress.parse(rest).canonical
    except ValueError:
        return text


def scheme_of(text: str) -> tuple[str, str]:
    """What stands before HOST:PORT of a target that does not speak gRPC, such as `ray://`, and the rest."""
    found = _OTHER_SCHEME.match(text.strip())
    return ("", text) if found is None else (found[0].lower(), text.strip()[found.end() :])


def bracketed(host: str) -> str:
    """The host as it stands before a port or in a URL."""
    return f"[{host.strip('[]')}]" if ":" in host else host


def is_loopback_only(host: str) -> bool:
    """Whether what listens on this host is reached from this machine only. A name is looked up.

    ValueError where that finds nothing. What the system cannot read, such as `::%lo`, may be all addresses
    to gRPC.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ValueError(f"{host!r} is no address or name that can be looked up") from None
    return all(ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found)


def _host(text: str, given: str) -> str:
    if not text:
        return LOCALHOST
    is_bracketed = text.startswith("[") and text.endswith("]")
    host = text[1:-1] if is_bracketed else text.lower().rstrip(".")
    if ":" in host or is_bracketed:
        address, percent, zone = unquote(host).partition("%")  # A URL has %25 in place of %.
        try:
            host = ipaddress.IPv6Address(address).compressed + percent + zone
        except ValueError:
            raise _not_an_address(given) from None
        if percent and not _NAME.fullmatch(zone):
            raise _not_an_address(given)
    elif not _NAME.fullmatch(host):
        raise _not_an_address(given)
    return _LOOPBACK_OF_WILDCARD.get(host, host)


def _not_an_address(given: str) -> ValueError:
    return ValueError(f"must be HOST:PORT, e.g. localhost:8500 or [::1]:8500, got {given!r}")


def _is_loopback(host: str) -> bool:
    if host in (LOCALHOST, socket.gethostname().lower()):
        return True
    address = _ip(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address is not None and address.is_loopback


def _is_own(host: str) -> bool:
    """True for an address of this machine: only such a one can be bound."""
    address = _ip(host)
    if address is None or address.is_multicast:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind(socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0][4])
        return True
    return False


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
