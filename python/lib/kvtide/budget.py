"""How many tokens a step of vLLM's may have: the attribute `max_num_scheduled_tokens`, which its scheduler, synchronous or
asynchronous, reads anew in every `schedule()`, and for nothing else that lasts.

What a smaller value leaves as it is, since it was sized when the engine started by `max_num_batched_tokens`, which is not
touched: the worker's buffers, the CUDA graphs (a step is padded to the next captured size, whatever bounds it) and the ranges
that were compiled; the encoder's budget and cache, which are counted apart; a request's share under
`long_prefill_token_threshold`, which can be smaller still; the draft slots of speculative decoding. Pipeline stages are given
steps of at most so many tokens each, and data-parallel ranks differ in it as they differ in load.

What a value must respect:

- never above the engine's own: vLLM asserts that no step has more;
- never below what decodes need, each its next token and the drafts before it. vLLM serves those who run in their order, so it
  must suffice for everybody up to the last that decodes: where prompts are computed in several parts at once
  (`long_prefill_token_threshold`, an encoder without room), one of them may stand before a decode;
- never where something must be computed whole in one step, which a small value would put off for ever: prompts without chunked
  prefill (encoder-decoder models among them), images under `disable_chunked_mm_input`, a diffusion model's canvas, and the
  chunks of Mamba models, which end where a block does. There the head is vLLM's own (`can_follow`).
"""

from __future__ import annotations

from operator import attrgetter

_is_prefill = attrgetter("is_prefill_chunk")


def can_follow(scheduler) -> bool:
    """Whether the tokens of a step can be bounded anew on `scheduler`, as it is configured."""
    config = scheduler.scheduler_config
    has_whole_inputs = config.disable_chunked_mm_input and scheduler.max_num_encoder_input_tokens > 0
    return (
        config.enable_chunked_prefill
        and not has_whole_inputs
        and not scheduler.is_encoder_decoder
        and not scheduler.need_mamba_block_aligned_split
        # None is sampled where requests are pooled, or a canvas is denoised.
        and scheduler.num_sampled_tokens_per_step == 1
    )


class StepBudget:
    """Tokens a step, on one scheduler that can follow."""

    def __init__(self, scheduler) -> None:
        self.scheduler = scheduler
        # What it does by itself.
        self.own = self.in_force = scheduler.max_num_scheduled_tokens
        self.level = self.own
        # How much a step has that is full of prompts: what its tokens cost is then what prompts cost.
        self.full = self.own

    def set(self, level: float | None) -> None:
        """At most `level` tokens a step from now on; None: as many as the engine's own."""
        self.level = self.own if level is None else min(int(level), self.own)
        self.put(self.level)

    def before(self) -> None:
        """Before a step is planned: the decodes have changed."""
        if self.level < self.own:
            self.put(min(self.own, max(self.level, self.needed())))

    def put(self, tokens: int) -> None:
        if tokens != self.in_force:
            self.in_force = self.scheduler.max_num_scheduled_tokens = tokens
        self.full = tokens if tokens == self.level else self.own

    def needed(self) -> int:
        """Tokens that those who run ask for, up to and including the last that decodes; where that is no more than the level,
        perhaps a few more."""
        scheduler = self.scheduler
        running, tokens = scheduler.running, 1 + scheduler.num_spec_tokens
        prefills = sum(map(_is_prefill, running))
        most = (len(running) - prefills) * tokens
        # Prompts stand behind all who decode, unless several are computed at once.
        if most <= self.level and (prefills == 0 or prefills == 1 and running[-1].is_prefill_chunk):
            return most
        threshold = scheduler.scheduler_config.long_prefill_token_threshold or self.own
        asked = needed = 0
        for request in running:
            if request.is_prefill_chunk:
                asked += min(request.num_tokens - request.num_computed_tokens, threshold)
            elif not _has_all(request):
                asked += tokens
                needed = asked
        return needed


def _has_all(request) -> bool:
    """Whether its last token is on its way, so that it asks for nothing more."""
    on_its_way = request.num_output_placeholders
    return on_its_way > 0 and (request.num_computed_tokens + 2 - on_its_way >= request.num_prompt_tokens + request.max_tokens)
