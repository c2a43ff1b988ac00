"""Lake in a bucket of an object store that speaks S3, or in a folder of it.

A PUT that the store has acknowledged is durable, so `sync` has nothing to do. An object exists as a whole or not at
all, so nothing tears. Exclusive creation uses S3's conditional write (`If-None-Match: *`), as delta-rs does for its
log. A store without it is refused.
"""

from __future__ import annotations

import contextlib
import functools
import io
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Final, cast

import obstore
from deltalake import DeltaTable
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from cloud.place.faults import ObjectStoreError, explain_error
from cloud.place.limits import CONNECT_S, READ_BYTES, REQUEST_S, RETRIES_MAX, RETRY_S_MAX
from cloud.place.options import BucketOptions

if TYPE_CHECKING:
    from obstore.store import S3Config

LOG: Final = "_delta_log"


class Bucket:
    """Place in an object store, implements `cloud.place.place.LakePlace`."""

    tears: Final = False

    def __init__(self, bucket: str, prefix: str, options: BucketOptions) -> None:
        """`prefix`: names separated by `/`, or empty."""
        self._bucket = bucket
        self._prefix = prefix
        self._options = options

    def __repr__(self) -> str:
        return f"Bucket({self.uri!r})"

    def __str__(self) -> str:
        return self.uri

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bucket) and (self.uri, self._options) == (other.uri, other._options)

    def __hash__(self) -> int:
        return hash(self.uri)

    @property
    def name(self) -> str:
        return self._prefix.rpartition("/")[2] or self._bucket

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def spark_uri(self) -> str:
        return f"s3a://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def options(self) -> BucketOptions:
        """Endpoint and credentials of the store."""
        return self._options

    @property
    def storage_options(self) -> dict[str, str]:
        bounds = {"connect_timeout": f"{CONNECT_S}s", "timeout": f"{REQUEST_S}s"}
        bounds |= {"max_retries": str(RETRIES_MAX), "retry_timeout": f"{RETRY_S_MAX}s"}
        return {**_client_options(self._options), **bounds, "aws_conditional_put": "etag"}

    @property
    def _store(self) -> S3Store:
        return _store(self._bucket, self._options)

    def at(self, name: str) -> Bucket:
        return Bucket(self._bucket, self._key(name), self._options)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def delta(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.uri, version=version, storage_options=self.storage_options)

    def is_table(self) -> bool:
        with self._errors("look for a table"):
            return any(obstore.list(self._store, self._key(LOG), chunk_size=1))

    def tables(self) -> list[str]:
        with self._errors("list"):
            found = obstore.list_with_delimiter(self._store, self._prefix or None)["common_prefixes"]
        names = sorted(prefix.rstrip("/").rpartition("/")[2] for prefix in found)
        return [name for name in names if self.at(name).is_table()]

    def names(self, folder: str) -> Sequence[str]:
        with self._errors(f"list {folder}"):
            found = obstore.list_with_delimiter(self._store, self._key(folder))["objects"]
        return [meta["path"].rpartition("/")[2] for meta in found]

    def size(self, path: str) -> int | None:
        try:
            with self._errors(f"look for {path}"):
                return obstore.head(self._store, self._key(path))["size"]
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes | None:
        try:
            with self._errors(f"read {path}"):
                return obstore.get(self._store, self._key(path)).bytes().to_bytes()
        except FileNotFoundError:
            return None

    def source(self, path: str) -> IO[bytes]:
        size = self.size(path)
        if size is None:
            raise FileNotFoundError(f"{self.uri}/{path} is missing")
        return io.BufferedReader(_Reader(functools.partial(self._range, path), size), READ_BYTES)

    def _range(self, path: str, start: int, length: int) -> bytes:
        with self._errors(f"read {path}"):
            return obstore.get_range(self._store, self._key(path), start=start, length=length).to_bytes()

    def make(self) -> None:
        """Do nothing: folders of an object store are prefixes of names."""

    def check(self) -> None:
        """Check that the store refuses to create an object twice. The first put may be a retry by the client that found
        its own object."""
        path = f"_probe/{uuid.uuid4()}"
        try:
            self.put_new(path, b"")
            if self.put_new(path, b""):
                raise ObjectStoreError(
                    f"{self.uri}: the store does not support conditional writes (If-None-Match): two writers would "
                    "overwrite each other's commits"
                )
        finally:
            with contextlib.suppress(OSError):
                self.delete(path)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[IO[bytes]]:
        content = io.BytesIO()
        yield content
        if not self.put_new(path, content.getbuffer()) and self.read(path) != content.getvalue():
            raise FileExistsError(f"{self.uri}/{path}")

    def put_new(self, path: str, content: bytes | memoryview) -> bool:
        """Create an object; return False if it exists.

        It may exist because of this very put: if a store fails after it has written, the client retries and is refused.
        Compare the content to find out.
        """
        try:
            with self._errors(f"put {path}"):
                obstore.put(self._store, self._key(path), content, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._errors(f"delete {path}"):
            obstore.delete(self._store, self._key(path))

    def clear(self) -> None:
        with self._errors("delete all"):
            for metas in obstore.list(self._store, f"{self._prefix}/"):
                obstore.delete(self._store, [meta["path"] for meta in metas])

    def sync(self, folder: str, names: Sequence[str]) -> None:
        """Do nothing: objects are durable once acknowledged."""

    @contextlib.contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Translate errors of the client to `OSError`, with the cause on one line."""
        try:
            yield
        except AlreadyExistsError as error:
            raise FileExistsError(f"{self.uri}: {what}: the object exists") from error
        except (BaseError, FileNotFoundError, PermissionDeniedError, UnauthenticatedError) as error:
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                raise
            raise ObjectStoreError(f"{self.uri}: {what}: {explain_error(str(error))}") from None


class _Reader(io.RawIOBase):
    """Reader of an object in pieces."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """`read` returns a number of bytes from a position."""
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        view[:length] = self._read(self._at, length)
        self._at += length
        return length


@functools.lru_cache(maxsize=8)
def _store(bucket: str, options: BucketOptions) -> S3Store:
    """Return the client for all tables of a lake: it keeps connections."""
    return S3Store(
        bucket,
        config=cast("S3Config", _client_options(options)),
        client_options={"connect_timeout": timedelta(seconds=CONNECT_S), "timeout": timedelta(seconds=REQUEST_S)},
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_S_MAX)},
    )


def _client_options(options: BucketOptions) -> dict[str, str]:
    """Return the options of the client library that obstore and delta-rs share."""
    found = {"aws_region": options.region}
    if options.endpoint is not None:
        found["aws_endpoint"] = options.endpoint
    if options.plain:
        found["aws_allow_http"] = "true"
    if options.credentials is not None:
        found["aws_access_key_id"] = options.credentials.access_key_id
        found["aws_secret_access_key"] = options.credentials.secret_access_key
        if options.credentials.session_token is not None:
            found["aws_session_token"] = options.credentials.session_token
    return found
