"""A scheduler with vLLM's names and a few of its rules, for the adapter alone: vLLM's own is in `make vllm-check`."""

from __future__ import annotations

from collections import defaultdict, deque
from enum import Enum, auto
from itertools import pairwise
from types import SimpleNamespace

from kvtide.vllm import TideMixin


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_ABORTED = auto()


class Queue(deque):
    def add_request(self, request):
        self.append(request)

    def pop_request(self):
        return self.popleft()

    def peek_request(self):
        return self[0]

    def prepend_request(self, request):
        self.appendleft(request)

    def prepend_requests(self, requests):
        self.extendleft(requests)

    def remove_request(self, request):
        self.remove(request)

    def remove_requests(self, requests):
        kept = [request for request in self if request not in requests]
        self.clear()
        self.extend(kept)


class Request:
    def __init__(self, request_id, prompt, output, arrival_s=0.0):
        self.request_id, self.num_prompt_tokens, self.wanted, self.arrival_time = request_id, prompt, output, arrival_s
        self.num_output_tokens = self.num_computed_tokens = self.num_stale_output_tokens = 0
        self.is_prefill_chunk, self.num_output_placeholders, self.max_tokens = False, 0, output
        self.status, self.priority, self.lora_request, self.cache_salt = Status.WAITING, 0, None, None
        self.prompt_token_ids, self.block_hashes = list(range(prompt)), []

    @property
    def num_tokens(self):
        return self.num_prompt_tokens + self.num_output_tokens

    def is_finished(self):
        return self.status.name.startswith("FINISHED")


class Block:
    """A block of a pool; one with a hash has an entry in the prefix cache."""

    def __init__(self, block_id, block_hash=None):
        self.block_id, self.block_hash, self.ref_cnt = block_id, block_hash, 1
        self.prev_free_block = self.next_free_block = None


class FreeQueue:
    """A doubly linked list of blocks between two that are nobody's, as vLLM's is laid out."""

    def __init__(self, blocks):
        self.fake_free_list_head, self.fake_free_list_tail = Block(-1), Block(-1)
        self.num_free_blocks = len(blocks)
        chain = [self.fake_free_list_head, *blocks, self.fake_free_list_tail]
        for before, behind in pairwise(chain):
            before.next_free_block, behind.prev_free_block = behind, before


class Pool:
    """What retention needs of a block pool: its free queue, and where blocks get their entries."""

    def __init__(self, num_blocks):
        self.num_gpu_blocks, self.null_block = num_blocks, Block(0)
        self.blocks = [self.null_block, *map(Block, range(1, num_blocks))]
        self.free_block_queue = FreeQueue(self.blocks[1:])
        self.cached_block_hash_to_block = {}

    def cache_full_blocks(self, request, blocks, num_cached_blocks, num_full_blocks):
        for block in blocks[num_cached_blocks:num_full_blocks]:
            block.block_hash = f"{request}-{block.block_id}"


class Manager:
    """Blocks by count; block 0 is the null block."""

    def __init__(self, num_blocks, watermark):
        self.free, self.taken = num_blocks - 1, 0
        self.block_pool = Pool(num_blocks)
        self.block_pool.get_num_free_blocks = lambda: self.free
        self.held, self.enable_caching = defaultdict(list), True
        manager = SimpleNamespace(req_to_blocks=self.held, num_cached_block={})
        self.coordinator = SimpleNamespace(single_type_managers=[manager])
        self.watermark_blocks = int(watermark * num_blocks)

    def allocate_slots(self, request, tokens, has_running=False):
        need = -(-(request.num_computed_tokens + tokens) // 16) - len(self.held[request.request_id])
        reserve = self.watermark_blocks if has_running and request.status is not Status.RUNNING else 0
        if need + reserve > self.free:
            return None
        blocks = self.block_pool.blocks[1:]
        self.held[request.request_id] += [blocks[(self.taken + place) % len(blocks)] for place in range(need)]
        self.taken += need
        self.free -= need
        return need

    def release(self, request):
        self.free += len(self.held.pop(request.request_id, ()))


class VllmScheduler:
    def __init__(self, num_blocks=101, watermark=0.0, policy="fcfs"):
        self.scheduler_config = SimpleNamespace(
            watermark=watermark, async_scheduling=False, enable_chunked_prefill=True, disable_chunked_mm_input=False,
            long_prefill_token_threshold=0,
        )  # fmt: skip
        self.max_num_encoder_input_tokens, self.num_spec_tokens, self.num_sampled_tokens_per_step = 0, 0, 1
        self.is_encoder_decoder = self.need_mamba_block_aligned_split = False
        self.kv_cache_manager = Manager(num_blocks, watermark)
        self.policy = SimpleNamespace(value=policy)
        self.block_size, self.max_num_running_reqs, self.max_num_scheduled_tokens = 16, 8, 2048
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=0))
        self.waiting, self.running, self.requests = Queue(), [], {}

    def add_request(self, request):
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self):
        planned, new, resumed, preempted, index = {}, [], set(), set(), 0
        budget = self.max_num_scheduled_tokens
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            while self.kv_cache_manager.allocate_slots(request, tokens) is None:
                victim = self.running[-1]
                if not self._request_blocks_can_be_freed(victim):
                    break
                victim = self.running.pop()
                self._preempt_request(victim)
                preempted.add(victim.request_id)
                if victim is request:
                    break
            if request.status is not Status.RUNNING:
                break
            planned[request.request_id] = tokens
            budget -= tokens
            index += 1
        while not preempted and self.waiting and len(self.running) < self.max_num_running_reqs and budget > 0:
            request = self.waiting.peek_request()
            tokens = min(request.num_tokens, budget)
            if self.kv_cache_manager.allocate_slots(request, tokens, has_running=bool(self.running)) is None:
                break
            assert self.waiting.pop_request() is request
            if request.status is Status.WAITING:
                new.append(request)
            else:
                resumed.add(request.request_id)
            request.status = Status.RUNNING
            self.running.append(request)
            planned[request.request_id] = tokens
            budget -= tokens
        for request_id, tokens in planned.items():
            request = self.requests[request_id]
            request.num_computed_tokens += tokens
            request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        return SimpleNamespace(
            num_scheduled_tokens=planned,
            total_num_scheduled_tokens=sum(planned.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=request.request_id, num_computed_tokens=0) for request in new],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=resumed),
            preempted_req_ids=preempted,
        )

    def _request_blocks_can_be_freed(self, request):
        return True

    def _free_request_blocks(self, request):
        self.kv_cache_manager.release(request)

    def _preempt_request(self, request):
        self._free_request_blocks(request)
        request.status, request.num_computed_tokens = Status.PREEMPTED, 0
        self.waiting.prepend_request(request)

    def update_from_output(self, output):
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.status is not Status.RUNNING or request.is_prefill_chunk:
                continue
            request.num_output_tokens += 1
            if request.num_output_tokens >= request.wanted:
                request.status = Status.FINISHED_STOPPED
                self.running.remove(request)
                self._free_request(request)
        return {}

    def _update_request_as_session(self, session, update):
        session.num_prompt_tokens, session.num_output_tokens = session.num_tokens + update.prompt - 1, 0
        session.arrival_time = update.arrival_time

    def abort(self, request_id):
        request = self.requests[request_id]
        request.status = Status.FINISHED_ABORTED
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self._free_request(request)

    def _free_request(self, request):
        self._free_request_blocks(request)
        del self.requests[request.request_id]

    def shutdown(self):
        pass


class Scheduler(TideMixin, VllmScheduler):
    pass
