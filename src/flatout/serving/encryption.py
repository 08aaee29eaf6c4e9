"""TLS for the connections of clients."""

from __future__ import annotations

import ssl

from flatout.base.errors import UsageError
from flatout.serving.options import FrontOptions


def secured(options: FrontOptions) -> ssl.SSLContext | None:
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificate {options.certificate} with the key {options.key} can't be used: {error}") from error
    return context
