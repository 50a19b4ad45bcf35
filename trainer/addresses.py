"""Addresses of S3 storage, as settings hold them: their forms, and no login in them."""

from __future__ import annotations

import re

S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[\w!.*'()-]+)*/?")
HTTP = re.compile(r"https?://[^\s/@]+/?")


def check_s3(address: str) -> None:
    """Refuse what is no place in a bucket.

    Raises:
        ValueError: beginning with the key's name.
    """
    if address and not S3.fullmatch(address):
        raise ValueError(
            f'remote: must be s3://bucket/prefix, or empty; it holds "{without_login(address)}"'
        )


def check_http(address: str) -> None:
    """Refuse what is no address of a server.

    Raises:
        ValueError: beginning with the key's name.
    """
    if address and not HTTP.fullmatch(address):
        raise ValueError(
            "endpoint_url: must be http://host:port or https://host, without a login: that is for "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; it holds "
            f'"{without_login(address)}"'
        )


def without_login(address: str) -> str:
    """Return an address without the user and password in it."""
    return re.sub(r"//[^/]*@", "//***@", address)
