"""MLflow: a database in the folder `mlflow` of a run, or the server that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from saccade.config.load import flatten
from saccade.config.schema import Recipe
from saccade.files import atomic_write

FOLDER, DATABASE, ID_FILE = "mlflow", "mlflow.db", "saccade-run-id"
EXPERIMENT = "saccade"
MAX_PARAMETERS = 100  # of one request
MAX_CHARACTERS = 500  # of a parameter; older servers take no more


class MlflowLogger:
    """Writes to a run of MLflow: the recipe as parameters, numbers as metrics.

    MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME are respected. Steps that a resumed training takes again are logged
    once.
    """

    def __init__(self, run: Path, recipe: Recipe, start_step: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import: it reports its use to its makers
        from mlflow.tracking import MlflowClient

        folder = (run / FOLDER).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports how it creates its database
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / DATABASE}")
        self.last_steps: dict[str, int] = {}  # of an earlier start
        id_file = folder / ID_FILE
        if id_file.is_file():
            self.run_id = id_file.read_text(encoding="ascii").strip()
            self.client.update_run(self.run_id, status="RUNNING")
            for name in self.client.get_run(self.run_id).data.metrics:
                history = self.client.get_metric_history(self.run_id, name)
                self.last_steps[name] = max(metric.step for metric in history)
        else:
            self.run_id = self.create_run(run, folder)
            atomic_write(id_file, self.run_id.encode())
            self.log_recipe(recipe)

    def create_run(self, run: Path, folder: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self.client.get_experiment_by_name(name)
        location = None if os.environ.get("MLFLOW_TRACKING_URI") else (folder / "artifacts").as_uri()
        experiment = found.experiment_id if found else self.client.create_experiment(name, location)
        created = self.client.create_run(experiment, run_name=run.resolve().name)
        return str(created.info.run_id)

    def log_recipe(self, recipe: Recipe) -> None:
        from mlflow.entities import Param

        values = flatten(recipe.model_dump(mode="json"))
        parameters = [Param(key, str(value)[:MAX_CHARACTERS]) for key, value in values.items()]
        for i in range(0, len(parameters), MAX_PARAMETERS):
            self.client.log_batch(self.run_id, params=parameters[i : i + MAX_PARAMETERS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        new = {name: value for name, value in values.items() if step > self.last_steps.get(name, -1)}
        if new:
            self.client.log_batch(self.run_id, [Metric(name, value, now, step) for name, value in new.items()])

    def close(self, *, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")
