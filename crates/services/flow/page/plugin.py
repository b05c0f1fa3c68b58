"""Tells the workflow service of Forebay of a run's jobs: a line of JSON for each event (crates/services/flow/src/graph.rs)."""
import json
import os
import time

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent


def words(values):
    return [str(value) for value in values or []]


class LogHandler(LogHandlerBase):
    writes_to_stream = False
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record):
        at = getattr(record, "event", None)
        line = None
        if at == LogEvent.WORKFLOW_STARTED:
            line = {"event": "begin"}
        elif at == LogEvent.JOB_INFO:
            line = {"event": "job", "id": record.jobid, "rule": record.rule_name, "input": words(record.input),
                    "wildcards": {str(k): str(v) for k, v in dict(record.wildcards or {}).items()},
                    "output": words(record.output), "log": words(record.log)}
        elif at == LogEvent.JOB_FINISHED:
            line = {"event": "done", "id": record.job_id}
        elif at == LogEvent.JOB_ERROR:
            line = {"event": "error", "id": record.jobid}
        elif at == LogEvent.PROGRESS:
            line = {"event": "progress", "done": record.done, "total": record.total}
        path = os.environ.get("FOREBAY_FLOW_EVENTS")
        if line and path:
            try:
                with open(path, "a") as f:
                    f.write(json.dumps({**line, "at": int(time.time())}) + "\n")
            except OSError:
                # A run goes on without its picture.
                pass
