"""ML Metadata of a pipeline, written for the tests of what reads it."""

import json

from ml_metadata import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipeline import cache


class Store:
    """ML Metadata as TFX's launcher writes it, in a real file."""

    def __init__(self, path):
        config = mlmd.ConnectionConfig()
        config.sqlite.filename_uri = str(path)
        config.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        self.store = metadata_store.MetadataStore(config)
        self.folder = path.parent

    def publish(self, run, node, whole, *, state=mlmd.Execution.COMPLETE, output="out"):
        types = {
            kind: put(made)
            for kind, put, made in (
                (
                    "execution",
                    self.store.put_execution_type,
                    mlmd.ExecutionType(
                        name=f"components.x.{node}", properties={"fingerprint": mlmd.STRING}
                    ),
                ),
                (
                    "artifact",
                    self.store.put_artifact_type,
                    mlmd.ArtifactType(name="Examples"),
                ),
                (
                    "context",
                    self.store.put_context_type,
                    mlmd.ContextType(name=cache.PIPELINE_RUN),
                ),
            )
        }
        place = self.folder / node / run
        place.mkdir(parents=True, exist_ok=True)
        execution = mlmd.Execution(type_id=types["execution"], last_known_state=state)
        execution.properties["fingerprint"].string_value = json.dumps(whole)
        artifact = mlmd.Artifact(type_id=types["artifact"], uri=str(place))
        event = mlmd.Event(type=mlmd.Event.OUTPUT)
        event.path.steps.add(key=output)
        event.path.steps.add(index=0)
        context = mlmd.Context(type_id=types["context"], name=run)
        self.store.put_execution(
            execution, [(artifact, event)], [context], reuse_context_if_already_exist=True
        )
        return place
