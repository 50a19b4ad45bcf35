"""Checkpoints in S3 storage: whole or absent there too, since the manifest is written last.

A checkpoint is ``PREFIX/KEY/step-00000200/state.npy``, or such an object of each worker that wrote
it, and ``manifest.json`` beside it.
The key stands for what the training depends on, wherever its files stand, so that another machine
finds it. What the storage says is told in our own words: its messages may hold what is secret.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.checkpoint import NAME
from trainer.errors import CheckpointError, SettingError
from trainer.layout import FILE, MANIFEST, are_whole
from trainer.settings import CheckpointSettings

CONNECT_SECONDS = 5
READ_SECONDS = 30
PART_BYTES = 8 * 2**20
PARTS_AT_ONCE = 2
"""Parts of a file on their way together: so much memory an upload takes beside training."""
CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or an AWS profile or role"


class Unreachable(CheckpointError):
    """The storage does not answer, or fails for now: the same may work later."""


class Remote:
    """The checkpoints of one training in S3 storage.

    Attributes:
        address: ``s3://bucket/prefix/key``.
    """

    def __init__(self, settings: CheckpointSettings, *, key: str = "") -> None:
        """Take no step yet: nothing is asked before it is needed.

        Args:
            settings: where the storage is.
            key: of the training.
        """
        self._settings = settings
        self.address = "/".join(filter(None, [settings.remote.rstrip("/"), key]))
        self._place = self.address.removeprefix("s3://")

    @cached_property
    def _files(self) -> Any:
        try:
            import s3fs
        except ImportError as error:
            raise SettingError(
                "needs s3fs", where="checkpoint.remote", holds=self._settings.remote,
                right="pip install s3fs, or leave it empty",
            ) from error  # fmt: skip
        files = s3fs.S3FileSystem(
            endpoint_url=self._settings.endpoint_url or None,
            config_kwargs={
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": READ_SECONDS,
                # Who uploads tries again by itself, and says so.
                "retries": {"max_attempts": 1},
            },
            max_concurrency=PARTS_AT_ONCE,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        files.retries = 1
        return files

    def reach(self) -> None:
        """Return when the bucket answers and may be written to; nothing is left there.

        Raises:
            CheckpointError: when there is no such bucket, or it may not be read or written.
            Unreachable: when nobody answers.
        """
        bucket, _, prefix = self._place.partition("/")
        with self._told():
            self._files.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
            # Asks for the right to write without writing.
            place = {"Bucket": bucket, "Key": "/".join(filter(None, [prefix, ".headrace-check"]))}
            begun = self._files.call_s3("create_multipart_upload", **place)
            self._files.call_s3("abort_multipart_upload", UploadId=begun["UploadId"], **place)

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are whole there, newest first.

        Raises:
            CheckpointError: when the bucket cannot be read.
        """
        with self._told():
            found = set(self._files.find(self._place))
        names: dict[str, set[str]] = {}
        for one in found:
            names.setdefault(Path(one).parent.name, set()).add(Path(one).name)
        return sorted(
            (
                int(match[1])
                for folder, held in names.items()
                if (match := NAME.fullmatch(folder)) and are_whole(held)
            ),
            reverse=True,
        )

    def _at(self, folder: str, name: str) -> str:
        return f"{self._place}/{folder}/{name}"

    def put(self, path: Path) -> bool:
        """Copy a checkpoint there, unless the same is there; tell whether it was copied.

        Args:
            path: its folder; it may be removed meanwhile.

        Raises:
            FileNotFoundError: when it is not there any more.
            CheckpointError: when it cannot be copied; what is there is no checkpoint then.
        """
        with contextlib.ExitStack() as stack:
            text = stack.enter_context(open(path / MANIFEST, "rb")).read()
            # By their descriptors: older local checkpoints are removed while this goes on.
            states = {name: stack.enter_context(open(path / name, "rb"))
                      for name in sorted(json.loads(text)["sha256"])}  # fmt: skip
            there = self._manifest(path.name)
            if there == text:
                return False
            with self._told():
                if there is not None:
                    self._files.rm_file(self._at(path.name, MANIFEST))
                for name, state in states.items():
                    self._files.put_file(
                        f"/proc/self/fd/{state.fileno()}", self._at(path.name, name),
                        chunksize=PART_BYTES,
                    )  # fmt: skip
                self._files.pipe_file(self._at(path.name, MANIFEST), text)
        return True

    def _manifest(self, name: str) -> bytes | None:
        with self._told():
            try:
                return self._files.cat_file(self._at(name, MANIFEST))
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None

    def get(self, step: int, into: Path) -> None:
        """Copy a checkpoint's files from there into a folder; they are not looked at.

        Raises:
            CheckpointError: when they cannot be had.
        """
        text = self._manifest(_name(step)) or b""
        (into / MANIFEST).write_bytes(text)
        try:
            names = [one for one in json.loads(text)["sha256"] if FILE.fullmatch(one)]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError("the checkpoint is damaged", where=self.of(step)) from error
        for name in names:
            with self._told():
                self._files.get_file(self._at(_name(step), name), str(into / name))

    def best_step(self, step: int) -> int:
        """Return the best step that a checkpoint there speaks of; 0: none.

        Raises:
            CheckpointError: when it cannot be read.
        """
        text = self._manifest(_name(step))
        try:
            return int(json.loads(text or b"")["facts"]["progress"]["best_step"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError("the checkpoint is damaged", where=self.of(step)) from error

    def remove(self, step: int) -> None:
        """Remove a checkpoint from there.

        Raises:
            CheckpointError: when the storage does not.
        """
        with self._told():
            self._files.rm_file(self._at(_name(step), MANIFEST))
            for one in self._files.find(f"{self._place}/{_name(step)}"):
                self._files.rm_file(one)

    def of(self, step: int) -> str:
        """Return the address of one checkpoint."""
        return f"{self.address}/{_name(step)}"

    @contextlib.contextmanager
    def _told(self) -> Generator[None, None, None]:
        """Raise what goes wrong as an error of ours, in which nothing is secret.

        Raises:
            CheckpointError: which of them.
        """
        import botocore.exceptions

        try:
            yield
        except (OSError, botocore.exceptions.BotoCoreError) as error:
            failure: CheckpointError = self._failure(error)
            # Not the cause: its text is the storage's.
            raise failure from None

    def _failure(self, error: Exception) -> CheckpointError:
        import botocore.exceptions as botocore

        settings, code = self._settings, _code(error)
        bucket = self._place.partition("/")[0]
        if code == "NoSuchBucket":
            return CheckpointError(
                f"there is no bucket {bucket}", where="checkpoint.remote", holds=settings.remote,
                right="make it, or name another one",
            )  # fmt: skip
        if isinstance(error, botocore.NoCredentialsError | botocore.PartialCredentialsError):
            return CheckpointError(
                "there are no credentials for it", where="checkpoint.remote",
                holds=settings.remote, right=f"set {CREDENTIALS}",
            )  # fmt: skip
        if isinstance(error, PermissionError):
            return CheckpointError(
                f"the storage refuses ({code or 403})", where="checkpoint.remote",
                holds=settings.remote, right=f"check {CREDENTIALS}, and its rights on the bucket",
            )  # fmt: skip
        if isinstance(error, FileNotFoundError):
            return CheckpointError("it is not there any more", where=self.address)
        how = f"fails ({code})" if code else f"does not answer ({type(error).__name__})"
        return Unreachable(
            f"the storage {how}", where="checkpoint.remote", holds=settings.remote,
            right="see that it runs, and checkpoint.endpoint_url or AWS_ENDPOINT_URL",
        )  # fmt: skip


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _code(error: BaseException) -> str:
    """Return what S3 calls the error that s3fs made this one of; empty: it said nothing."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        seen = seen.__cause__
    return ""
