"""One request and its answer, before a run: what the server offers, and whether it takes what will be sent."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any

from flatout.base.errors import UnusableServer
from flatout.loadtest.requests import LoadRequest
from flatout.loadtest.target import LoadTarget

_SHOWN = 300
_COMES_LATER = (408, 429)  # too slow, too many: nothing is wrong with the request


@dataclass(frozen=True)
class OneAnswer:
    status: int
    body: bytes

    def json(self) -> Any:
        """None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def excerpt(self) -> str:
        text = self.body[:_SHOWN].decode(errors="replace").strip()
        return " ".join(text.split())


def ask_once(target: LoadTarget, request: LoadRequest, timeout_s: float) -> OneAnswer:
    connection = _connection(target, timeout_s)
    try:
        connection.request(request.method, request.path, request.body or None, dict(request.all_headers(target.authority)))
        answer = connection.getresponse()
        return OneAnswer(answer.status, answer.read())
    except ConnectionRefusedError as error:
        raise UnusableServer(f"{target}: can't connect: {error}. Is the server running, and is this its port?") from error
    except TimeoutError as error:
        raise UnusableServer(f"{target}: no answer to {request.path} within {timeout_s:g} s; --timeout waits longer") from error
    except ssl.SSLCertVerificationError as error:
        hint = "--insecure accepts a certificate that the server has signed itself"
        raise UnusableServer(f"{target}: the certificate is not trusted: {error.verify_message}; {hint}") from error
    except ssl.SSLError as error:
        raise UnusableServer(f"{target}: TLS failed: {error.reason or error}. Does the server speak https?") from error
    except http.client.RemoteDisconnected as error:
        raise UnusableServer(f"{target}: the server closed the connection without an answer to {request.path}") from error
    except http.client.HTTPException as error:
        said = f": {error}" if str(error) else ""
        raise UnusableServer(f"{target}: the answer to {request.path} is not HTTP ({type(error).__name__}{said})") from error
    except OSError as error:
        raise UnusableServer(f"{target}: the connection broke: {error}") from error
    finally:
        connection.close()


def check_first(target: LoadTarget, request: LoadRequest, timeout_s: float) -> None:
    """A request that the server calls wrong would be as wrong a thousand times."""
    answer = ask_once(target, request, timeout_s)
    if 400 <= answer.status < 500 and answer.status not in _COMES_LATER:
        hint = {401: "add --header 'Authorization: Bearer ...'", 404: "is the path right?"}.get(answer.status, "")
        told = "; ".join(part for part in (answer.excerpt(), hint) if part)
        raise UnusableServer(f"{target}: the server answers {answer.status} to {request.method} {request.path}: {told}")


def _connection(target: LoadTarget, timeout_s: float) -> http.client.HTTPConnection:
    if not target.is_tls:
        return http.client.HTTPConnection(target.host, target.port, timeout=timeout_s)
    context = ssl.create_default_context() if target.verify else ssl._create_unverified_context()
    return http.client.HTTPSConnection(target.host, target.port, timeout=timeout_s, context=context)
