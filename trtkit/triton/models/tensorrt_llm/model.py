"""tensorrt_llm: TensorRT-LLM's tensor contract in front of trtkit's engines.

execute() only queues. The engine's thread hands its tokens to one sender thread, so that sending overlaps the
next engine step; one housekeeping thread notices clients that went away and refreshes the metrics.
"""

import itertools
import os
import threading

import triton_python_backend_utils as pb_utils
from trtkit_gauges import Gauges
from trtkit_io import Refusal, Reply, Resting, Settings
from trtkit_job import Job, Jobs
from trtkit_outbox import Outbox
from trtkit_request import check_supported, flag, generation_requests

from trtkit.engine.serving import open_engine


class TritonPythonModel:
    """One engine, any number of requests in flight."""

    def initialize(self, args):
        """Load the engine and start the threads."""
        settings = Settings(args)
        self._outbox = Outbox()
        self._engine = open_engine(
            settings.path("gpt_model_path"), settings.path("tokenizer_dir"), settle=self._outbox.settle
        )
        self._exclude_input = settings.flag("exclude_input_in_output", default=False)
        self._jobs = Jobs()
        self._resting = Resting()
        self._numbers = itertools.count()
        self._closing = threading.Event()
        self._gauges = Gauges(args["model_name"], args["model_version"], settings.max_batch_size)
        period_s = min(
            settings.seconds("cancellation_check_period_ms", 100),
            settings.seconds("stats_check_period_ms", 100),
        )
        self._threads = [
            threading.Thread(target=self._send, name="sender"),
            threading.Thread(target=self._keep_house, args=(period_s,), name="housekeeper"),
        ]
        for thread in self._threads:
            thread.start()

    def execute(self, requests):
        """Take the requests and return at once; responses follow."""
        for request in requests:
            reply = Reply(request)
            try:
                if flag(request, "stop"):
                    self._stop(request.request_id(), reply)
                else:
                    self._start(request, reply)
            except Exception as error:
                reply.fail(error)

    def _start(self, request, reply):
        check_supported(request)
        rows = generation_requests(request, next(self._numbers))
        exclude_input = flag(request, "exclude_input_in_output", default=self._exclude_input)
        job = Job(request.request_id(), reply, rows, exclude_input=exclude_input)
        self._jobs.add(job)
        for index, row in enumerate(rows):
            self._engine.submit(row, lambda chunk, index=index: self._outbox.put(job, index, chunk))

    def _stop(self, request_id, reply):
        if not request_id:
            raise Refusal("Trying to stop a request but request ID is not provided", "INTERNAL")
        for job in self._jobs.with_id(request_id):
            self._cancel(job.rows)
        reply.finish()

    def _cancel(self, rows):
        for row in rows:
            self._engine.cancel(row.request_id)

    def _send(self):
        while (item := self._outbox.get()) is not None:
            job, index, chunk = item
            if not job.reply.closed:
                self._deliver(job, index, chunk)
            if job.reply.closed:
                self._jobs.remove(job)
                self._resting.keep(job)
                self._cancel(job.unfinished_rows)
            self._outbox.sent()

    def _deliver(self, job, index, chunk):
        try:
            job.deliver(index, chunk)
        except Refusal as error:
            # A sound engine refuses only what the client should not have asked.
            job.reply.fail(Refusal(str(error), "INTERNAL") if self._engine.failure else error)
        except Exception as error:
            job.reply.fail(error)

    def _keep_house(self, period_s):
        while not self._closing.wait(period_s):
            self._resting.let_go()
            for job in self._jobs.snapshot():
                if job.notice_client_gone():
                    self._cancel(job.rows)
            self._gauges.refresh(self._engine.stats())
            if self._engine.failure and not self._jobs.snapshot():
                # Triton would go on calling the model ready; a dead process is noticed and replaced.
                pb_utils.Logger.log_error(self._engine.failure)
                os._exit(1)

    def finalize(self):
        """Stop the threads."""
        self._closing.set()
        self._engine.close()
        self._outbox.close()
        for thread in self._threads:
            thread.join()
        self._gauges.close()
        self._resting.let_go(rest_s=0)
