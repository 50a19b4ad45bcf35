"""The way to a Kubeflow Pipelines server, and what its refusals mean, each in one line.

The host is ``--host``, or kfp's own KF_PIPELINES_ENDPOINT, or the server of the cluster that this
process runs in, or the one that kubectl is set up for. The token comes from a file, from
HEADRACE_KFP_TOKEN, or from the pod's volume; never from the command line, where others see it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainer.errors import HeadraceError, InputError, SettingError, TrainingError

HOST, UI_HOST, TOKEN = "KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT", "HEADRACE_KFP_TOKEN"
POD_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
KFP_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")
"""Where the cluster puts a token that is meant for Kubeflow Pipelines."""
LONGEST = 300
"""Characters of a server's message that are told."""
SERVER_SIDE = 500
UNAUTHENTICATED, FORBIDDEN, NOT_FOUND = 401, 403, 404


@dataclass(frozen=True)
class Server:
    """A server that answered.

    Attributes:
        client: kfp's.
        host: as a person names it, for messages and links.
        namespace: of the runs; None: the server has no namespaces of users.
    """

    client: Any
    host: str
    namespace: str | None

    def url(self, run_id: str) -> str:
        """Return where a run is shown."""
        shown = os.environ.get(UI_HOST) or self.host
        return f"{shown.rstrip('/')}/#/runs/details/{run_id}"


def connect(host: str, *, token_file: str, namespace: str) -> Server:
    """Return a server that speaks the API of Kubeflow Pipelines v2 to us.

    Args:
        host: its address; empty: see above.
        token_file: file with a token, read anew when it is needed; empty: see above.
        namespace: of the runs, where the server has several users.

    Raises:
        InputError: there is none, it does not let us in, or it is too old.
    """
    host = _host(host)
    credentials = _credentials(token_file, has_host=bool(host))
    with _quietly(), translated(host or "Kubeflow Pipelines"):
        client = _client(host, credentials)
        has_users = bool(client.get_kfp_healthz().multi_user)
    return Server(client, host or client.shown_host, namespace if has_users else None)


def _host(host: str) -> str:
    """Return the address that was given.

    Raises:
        InputError: it is none, or nothing says where a server is.
    """
    host = (host or os.environ.get(HOST, "")).rstrip("/")
    if not host:
        kubectl = Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
        if not POD_TOKEN.exists() and not kubectl.exists():
            raise InputError(
                "no server is named, this is no pod of a cluster, and kubectl is not set up",
                where="--host", right=f"give its address, or set {HOST}",
            )  # fmt: skip
        return ""
    parts = urlsplit(host)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError(
            "is no address of a server", where="--host", holds=json.dumps(host),
            right="write http://... or https://...",
        )  # fmt: skip
    if parts.username or parts.password:
        raise InputError(
            "must not hold credentials", where="--host", right=f"put a token into {TOKEN}"
        )
    return host


def _credentials(token_file: str, *, has_host: bool) -> dict[str, Any]:
    """Return the arguments of kfp's client that let us in.

    Raises:
        InputError: the file holds no token.
    """
    from kfp.client import ServiceAccountTokenVolumeCredentials

    if token_file:
        try:
            is_empty = not Path(token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise InputError(
                "cannot be read", where=f"--token-file {token_file}", right="name another file"
            ) from error
        if is_empty:
            raise InputError("is empty", where=f"--token-file {token_file}")
        return {"credentials": ServiceAccountTokenVolumeCredentials(token_file)}
    if token := os.environ.get(TOKEN, "").strip():
        return {"existing_token": token}
    if has_host and KFP_TOKEN.exists():
        return {"credentials": ServiceAccountTokenVolumeCredentials(str(KFP_TOKEN))}
    return {}


def _client(host: str, credentials: dict[str, Any]) -> Any:
    import kfp

    class Client(kfp.Client):
        """kfp's client, which asks once and leaves no file behind.

        Its own asks a server that refuses us five times, five seconds apart, logs each time, and
        then does not say why; and it notes the namespace in the home folder.
        """

        def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:
            del sleep_duration
            found, _, headers = self._healthz_api.healthz_service_get_healthz_with_http_info()
            if "json" not in headers.get("Content-Type", ""):
                # The client makes an empty answer of any text.
                raise TypeError("not JSON")
            return found

        def set_user_namespace(self, namespace: str) -> None:
            self._context_setting["namespace"] = namespace

        @property
        def shown_host(self) -> str:
            """The address that was found."""
            found = str(self._existing_config.host)
            return found if "://" in found else f"http://{found}"

    return Client(host=host or None, **credentials)


@contextlib.contextmanager
def _quietly() -> Generator[None, None, None]:
    """Keep what kfp prints off standard output, which may be a script's."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def asking(server: Server, *, namespace: str = "") -> Generator[None, None, None]:
    """Translate what a server's refusal of a request means.

    Args:
        server: that is asked.
        namespace: that the request is about, when a refusal may be of that alone.

    Raises:
        HeadraceError: in the place of what kfp's client raised.
    """
    with _quietly(), translated(server.host, namespace=namespace):
        yield


@contextlib.contextmanager
def translated(host: str, *, namespace: str = "") -> Generator[None, None, None]:
    """Turn the errors of kfp's client into one line each.

    Raises:
        InputError: there is no such server, or it is another one.
        refusal: what the server's status means.
    """
    import kfp_server_api
    import urllib3

    try:
        yield
    except kfp_server_api.ApiException as error:
        raise refusal(int(error.status or 0), said(error), host, namespace=namespace) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise InputError(
            f"no server answers ({cause(error)})", where=host,
            right="check the address, or open the way: "
            "kubectl port-forward -n kubeflow svc/ml-pipeline-ui 8080:80",
        ) from error  # fmt: skip
    except (ValueError, TypeError, AttributeError) as error:
        if str(error).startswith("Multiple experiments"):
            raise InputError(
                "several experiments have this name", where="--experiment", right="name another"
            ) from error
        # A proxy's page for people to log in at comes with status 200.
        raise InputError(
            "answers, but not as the API of Kubeflow Pipelines does", where=host,
            right=f"if that is a page to log in at, put a token into {TOKEN}",
        ) from error  # fmt: skip


def refusal(status: int, message: str, host: str, *, namespace: str) -> HeadraceError:
    """Return what an answer of the server that is not 2xx means.

    Args:
        status: of HTTP; 0: TLS failed.
        message: of the server.
        host: its address.
        namespace: that the request was about; empty: it was about none.
    """
    told = f" ({message})" if message else ""
    if status == UNAUTHENTICATED:
        return InputError(
            f"does not know who asks: 401{told}", where=host,
            right=f"put a token that is still valid into {TOKEN}, or name a --token-file",
        )  # fmt: skip
    if namespace and status in {FORBIDDEN, NOT_FOUND}:
        return SettingError(
            f"is no namespace that you may run in: {status}{told}", where="kubeflow.namespace",
            holds=json.dumps(namespace), right="name your profile's namespace",
        )  # fmt: skip
    if status == FORBIDDEN:
        return InputError(
            f"refuses whom the token is of: 403{told}", where=host,
            right="ask for the right to use Kubeflow Pipelines, or take another token",
        )  # fmt: skip
    if status == NOT_FOUND:
        return InputError(
            "has no API v2beta1: it is older than Kubeflow Pipelines 2.0, or something else",
            where=host, right="upgrade it, or correct the address",
        )  # fmt: skip
    if not status:
        return InputError(f"cannot be trusted{told}", where=host, right="check its certificate")
    if status >= SERVER_SIDE:
        return TrainingError(
            f"failed: {status}{told}", where=host, right="look at the log of ml-pipeline"
        )
    return InputError(f"refused the request: {status}{told}", where=host)


def said(error: Any) -> str:
    """Return the server's own message of an error, on one line."""
    body = error.body.decode("utf-8", "replace") if isinstance(error.body, bytes) else error.body
    try:
        told = json.loads(body or "")
        message = told.get("message") or told.get("error") or ""
    except (ValueError, AttributeError):
        message = str(error.reason or "")
    return " ".join(str(message).split())[:LONGEST]


def cause(error: BaseException) -> str:
    """Return the innermost reason of an error of the network."""
    seen: Any = error
    while inner := getattr(seen, "reason", None) or seen.__cause__:
        if not isinstance(inner, BaseException):
            break
        seen = inner
    text = seen.strerror if isinstance(seen, OSError) and seen.strerror else str(seen)
    return str(text).rpartition(": ")[2].rpartition("] ")[2]
