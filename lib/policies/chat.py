"""From chat messages to tokens, once: the template for the first prompt, fixed separators after it.

Chat templates are not prefix-preserving (Qwen3's strips the thinking of past turns), so a conversation that is
templated anew each turn is not the conversation that was sampled. Here the token sequence only ever grows: template of
the first messages, sampled action, separator + observation + generation prompt, sampled action, …
"""

from __future__ import annotations

from functools import lru_cache

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

_ACTION, _OBSERVATION = "ACTION-0f3a", "OBSERVATION-9c1d"


class ChatFormat:
    """The token-level chat format of a tokenizer.

    stop_ids: sampling one of these ends an action; the first is what the template closes an assistant's turn with.
    thinking: for templates with that switch; `text` then leaves the thoughts out. Raises ValueError for a tokenizer
    without a chat template, without an end-of-sequence token, or whose template does not put messages into text as
    they are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, thinking: bool = False):
        if tokenizer.chat_template is None:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use an instruct model")
        if tokenizer.eos_token_id is None:
            raise ValueError(f"the tokenizer of {tokenizer.name_or_path!r} has no end-of-sequence token")
        self.tokenizer, self.thinking = tokenizer, thinking
        self._special = [t.content for t in tokenizer.added_tokens_decoder.values()]
        probe = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": _ACTION},
            {"role": "user", "content": _OBSERVATION},
        ]
        text = self._template(probe)
        _, found_action, rest = text.partition(_ACTION)
        separator, found_observation, self._tail = rest.partition(_OBSERVATION)
        stop = max((t for t in self._special if separator.startswith(t)), key=len, default="")
        if not (found_action and found_observation and stop):
            raise ValueError(
                f"the chat template of {tokenizer.name_or_path!r} does not close an assistant turn with a special token"
            )
        self.stop_ids = tuple(dict.fromkeys((tokenizer.convert_tokens_to_ids(stop), tokenizer.eos_token_id)))
        self._separator = separator[len(stop) :]
        try:
            self._template([{"role": "system", "content": "be brief"}, *probe])
            self._system = True
        except TemplateError:  # such as Gemma's
            self._system = False
        self._ids = lru_cache(maxsize=65536)(self._encode)

    def _template(self, messages: list[dict[str, str]]) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=self.thinking
        )

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _plain(self, text: str) -> str:
        """`text` in which no special token can be read: what an environment says (a program's output, a table's cell)
        must not be able to end a turn or forge one."""
        for token in self._special:
            if token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of the first messages and the generation prompt. A system message goes in front of the user's where
        the template knows none."""
        messages = [m | {"content": self._plain(m["content"])} for m in messages]
        if not self._system and len(messages) > 1 and messages[0]["role"] == "system":
            system, first, *rest = messages
            messages = [first | {"content": f"{system['content']}\n\n{first['content']}"}, *rest]
        return list(self._ids(self._template(messages)))

    def between(self, action: list[int], observation: str) -> list[int]:
        """Token ids that follow a sampled action: (its missing end,) the observation as a user message, and the
        generation prompt. `action` is not touched: an action cut by the length limit gets its end of turn here."""
        missing = [] if action and action[-1] in self.stop_ids else [self.stop_ids[0]]
        return missing + list(self._ids(self._separator + self._plain(observation) + self._tail))

    def text(self, action: list[int]) -> str:
        """What the environment gets to read of an action: after thoughts only what follows them, of thoughts that were
        cut off nothing."""
        ids = action[:-1] if action and action[-1] in self.stop_ids else action
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        if not self.thinking:
            return text
        _, closed, answer = text.rpartition("</think>")
        return answer.strip() if closed else "" if "<think>" in text else text

    def assistant(self, text: str) -> list[int]:
        """Token ids of a demonstrated action, its end of turn included (supervised training only)."""
        return [*self._ids(text), self.stop_ids[0]]
