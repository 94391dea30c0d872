"""The fixtures that the lab's tests share with those of the package."""

from tests.conftest import shared_servers, unique_name, valkey_server

__all__ = ["shared_servers", "unique_name", "valkey_server"]
