"""preprocessing: text to token ids, word lists to encoded id lists."""

import numpy as np
from trtkit_io import (
    Refusal,
    Settings,
    array,
    failure,
    refuse_inputs,
    required,
    response,
    settled,
    spells_code,
    strings,
    tensor,
)
from trtkit_text import TextTokenizer, encode_word_list

UNSUPPORTED = (
    "DECODER_QUERY",
    "IMAGE_BYTES",
    "IMAGE_URL",
    "VIDEO_BYTES",
    "EMBEDDING_BIAS_WORDS",
    "EMBEDDING_BIAS_WEIGHTS",
    "PROMPT_TABLE_EXTRA_ID",
)


class TritonPythonModel:
    """Stateless: one response per request, batch rows right-padded to the longest."""

    def initialize(self, args):
        """Load the tokenizer."""
        settings = Settings(args)
        self._tokenizer = TextTokenizer(settings.path("tokenizer_dir"))
        self._add_special_tokens = settings.flag("add_special_tokens", default=True)
        self._end_ids = settings.numbers("end_ids")
        self._pad_id = settings.number("pad_id", 0)

    def execute(self, requests):
        """Return one response per request."""
        return settled([self._answer(request) for request in requests])

    def _answer(self, request):
        try:
            return response(self._tensors(request))
        except Exception as error:
            return failure(error, spell_code=spells_code(request))

    def _tensors(self, request):
        refuse_inputs(request, UNSUPPORTED)
        required(request, "QUERY")
        max_tokens = required(request, "REQUEST_OUTPUT_LEN")
        prompts = [row[0] for row in strings(request, "QUERY")]
        rows = [
            self._tokenizer.encode(prompt, add_special_tokens=self._add_special_tokens) for prompt in prompts
        ]
        if not all(rows):
            raise Refusal("the prompt is empty: it has no tokens")
        pad_ids = self._ids(request, "PAD_ID", len(rows), self._pad_id)
        end_ids = self._ids(request, "END_ID", len(rows), self._end_ids[0] if self._end_ids else -1)
        # A request that names its own end id has taken the question of ending into its own hands.
        more_ends = [[token] for token in self._end_ids[1:]] if array(request, "END_ID") is None else []
        longest = max(map(len, rows))
        padded = [
            row + [int(pad)] * (longest - len(row)) for row, pad in zip(rows, pad_ids[:, 0], strict=True)
        ]
        return [
            tensor("INPUT_ID", padded, np.int32),
            tensor("REQUEST_INPUT_LEN", [[len(row)] for row in rows], np.int32),
            tensor("REQUEST_OUTPUT_LEN", max_tokens, np.int32),
            self._word_list(request, "BAD_WORDS", len(rows), self._tokenizer.surface_variants, []),
            self._word_list(request, "STOP_WORDS", len(rows), self._stop_word, more_ends),
            tensor("OUT_END_ID", end_ids, np.int32),
            tensor("OUT_PAD_ID", pad_ids, np.int32),
        ]

    def _stop_word(self, word):
        return [self._tokenizer.encode_word(word)]

    def _word_list(self, request, name, batch, encode, always):
        texts = strings(request, f"{name}_DICT") or [[]] * batch
        words = [[*always, *(ids for word in row if word for ids in encode(word) if ids)] for row in texts]
        longest = max(encode_word_list(row).shape[1] for row in words)
        return tensor(f"{name}_IDS", [encode_word_list(row, longest) for row in words], np.int32)

    def _ids(self, request, name, batch, default):
        given = array(request, name)
        return np.full((batch, 1), default, np.int32) if given is None else given.reshape(batch, 1)
