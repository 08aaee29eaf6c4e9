"""The gRPC server of one front. All fronts listen at one address, and the kernel hands out the connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from flatout.base.errors import MachineError
from flatout.serving.front.grpc_service import GrpcService
from flatout.serving.front.limits import Limits
from flatout.serving.front.site import Site

_ALL_IN_TIME_S = 3600.0  # who stops the server knows how long it may take


class GrpcPort:
    """`tls` are the files of the certificate and of its key."""

    def __init__(self, site: Site, address: str, limits: Limits, tls: tuple[str, str] | None) -> None:
        self._site, self._address, self._limits, self._tls = site, address, limits, tls
        self._server: Any = None

    def open(self) -> None:
        """In the event loop. Connections wait until `start`. MachineError if the address is not free."""
        limits = self._limits
        options = (
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", limits.header_bytes),
        )
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
        server.add_generic_rpc_handlers((GrpcService(self._site).handler(),))
        try:
            if self._tls is None:
                server.add_insecure_port(self._address)
            else:
                certificate, key = (Path(file).read_bytes() for file in self._tls)
                server.add_secure_port(self._address, grpc.ssl_server_credentials([(key, certificate)]))
        except (RuntimeError, OSError) as error:
            raise MachineError(f"gRPC can't use {self._address}: {error}") from error
        self._server = server

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        """New calls are refused, and those under way are answered."""
        if self._server is not None:
            await self._server.stop(_ALL_IN_TIME_S)
