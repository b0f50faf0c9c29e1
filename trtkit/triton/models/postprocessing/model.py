"""postprocessing: token ids to text, stateless, also for a chunk in the middle of a stream."""

import numpy as np
from trtkit_io import Settings, array, failure, required, response, settled, text_tensor
from trtkit_text import TextTokenizer, decode_after


class TritonPythonModel:
    """One string per beam; CONTEXT_IDS holds the tokens before a streamed chunk."""

    def initialize(self, args):
        """Load the tokenizer."""
        settings = Settings(args)
        self._tokenizer = TextTokenizer(
            settings.path("tokenizer_dir"),
            skip_special_tokens=settings.flag("skip_special_tokens", default=True),
        )

    def execute(self, requests):
        """Return one response per request."""
        return settled([self._answer(request) for request in requests])

    def _answer(self, request):
        try:
            tokens = required(request, "TOKENS_BATCH")
            lengths = required(request, "SEQUENCE_LENGTH")
            context = array(request, "CONTEXT_IDS")
            if context is None:
                context = np.empty((*tokens.shape[:2], 0), np.int32)
            return response([text_tensor("OUTPUT", self._texts(tokens, lengths, context))])
        except Exception as error:
            return failure(error)

    def _texts(self, tokens, lengths, context):
        return [
            [
                decode_after(self._tokenizer.decode, before.tolist(), beam[:length].tolist())
                for beam, length, before in zip(*row, strict=True)
            ]
            for row in zip(tokens, lengths, context, strict=True)
        ]
