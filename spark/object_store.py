"""Access of Spark to a lake in a bucket: the settings of Hadoop's client (S3A), and credentials.

All of it is passed to the running JVM and not to its start, because everyone on the machine can read a command line.
Executors get it as part of the configuration of what they read or write.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final

from cloud.place.limits import REQUEST_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cloud.place.bucket import Bucket
    from cloud.place.options import BucketCredentials

COMMITS: Final = {f"spark.delta.logStore.{scheme}.impl": "waypost.ConditionalLogStore" for scheme in ("s3a", "s3")}
"""Settings for the start: how versions of tables are committed.

With Delta's own stores two writers of one version both succeed, and the data of one is lost.
"""
RETRIES_MAX: Final = 5
"""Retries of a request by S3A, each after a longer pause: an unresponsive store fails a job within minutes."""
COMMIT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Larger objects are uploaded in parts. A commit of 100,000 files is smaller: one conditional request."""

_ROLE: Final = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
"""Credentials of the machine: a role of the instance, the container or the pod."""
_GIVEN: Final = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
_LENT: Final = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"


def configure_bucket(session: SparkSession, bucket: Bucket, settings: Container[str] = ()) -> None:
    """Configure a session for a bucket, before it reads or writes. `settings`: names that are set elsewhere."""
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    for name, value in {**_client(bucket), **_credentials(bucket.options.credentials)}.items():
        if f"spark.hadoop.fs.s3a.{name}" not in settings:
            hadoop.set(f"fs.s3a.{name}", value)


def _client(bucket: Bucket) -> dict[str, str]:
    options = bucket.options
    found = {
        "endpoint.region": options.region,
        "connection.timeout": f"{REQUEST_S}s",
        "retry.limit": str(RETRIES_MAX),
        "multipart.size": str(COMMIT_BYTES_MAX),
        "multipart.threshold": str(COMMIT_BYTES_MAX),
        # Parquet's reader requests the ranges it needs.
        "experimental.input.fadvise": "random",
    }
    if options.endpoint is not None:
        # A store of one's own has no host name for each bucket.
        found |= {"endpoint": options.endpoint, "path.style.access": "true"}
    return found


def _credentials(credentials: BucketCredentials | None) -> dict[str, str]:
    if credentials is None:
        return {"aws.credentials.provider": _ROLE}
    found = {"access.key": credentials.access_key_id, "secret.key": credentials.secret_access_key}
    if credentials.session_token is None:
        return {**found, "aws.credentials.provider": _GIVEN}
    return {**found, "aws.credentials.provider": _LENT, "session.token": credentials.session_token}
