//! A slow model of vLLM's V0 decisions, written from the rules and not from the scheduler under test: one request is a
//! handful of counters, a queue is a deque, blocks are only counted. Newest victim, first come first served.

use std::collections::VecDeque;

use super::line::Line;

/// Settings, under golden logs' names.
#[derive(Debug, Clone, Copy)]
pub struct Params {
    pub block_size: i64,
    pub num_gpu_blocks: i64,
    pub num_cpu_blocks: i64,
    pub watermark_blocks: i64,
    pub max_num_seqs: i64,
    pub max_num_batched_tokens: i64,
    pub max_model_len: i64,
    pub swap: bool,
    pub chunked: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Request {
    prompt: i64,
    output: i64,
    generated: i64,
    computed: i64,
    /// Tokens with a slot.
    slots: i64,
    /// Blocks held, wherever.
    held: i64,
    decoding: bool,
}

impl Request {
    fn len(&self) -> i64 {
        self.prompt + self.generated
    }

    /// Tokens to compute.
    fn rest(&self) -> i64 {
        if self.decoding { 1 } else { self.len() - self.computed }
    }
}

/// The model's state.
#[derive(Debug)]
pub struct Reference {
    params: Params,
    requests: Vec<Request>,
    waiting: VecDeque<usize>,
    running: VecDeque<usize>,
    swapped: VecDeque<usize>,
    free: i64,
    free_cpu: i64,
}

/// Lists of a step, joined into queues at its end.
#[derive(Default)]
struct Draft {
    line: Line,
    tokens: i64,
    slots: i64,
    decodes: Vec<usize>,
    continued: Vec<usize>,
    swapped_decodes: Vec<usize>,
    swapped_prefills: Vec<usize>,
    admitted: Vec<usize>,
    recomputed: Vec<usize>,
    swapped_out: Vec<usize>,
    dropped_swapped: Vec<usize>,
}

/// The engine dies: no host blocks for this victim.
#[derive(Debug, PartialEq, Eq)]
pub struct Raised(pub u32);

fn ceil(value: i64, by: i64) -> i64 {
    -(-value).div_euclid(by)
}

impl Reference {
    pub fn new(params: Params) -> Reference {
        let (free, free_cpu) = (params.num_gpu_blocks, params.num_cpu_blocks);
        let [waiting, running, swapped] = [const { VecDeque::new() }; 3];
        Reference { params, requests: Vec::new(), waiting, running, swapped, free, free_cpu }
    }

    pub fn submit(&mut self, prompt: u32, output: u32) {
        self.waiting.push_back(self.requests.len());
        self.requests.push(Request { prompt: prompt.into(), output: output.into(), ..Request::default() });
    }

    /// One step, to its end: `finished` is filled.
    pub fn step(&mut self) -> Result<Line, Raised> {
        let mut draft = Draft::default();
        if self.params.chunked {
            self.decode(&mut draft)?;
            if draft.line.preempted.is_empty() {
                self.swap_in(&mut draft);
            }
            self.prefill(&mut draft);
        } else {
            draft.slots = self.running.len() as i64;
            if self.swapped.is_empty() {
                self.prefill(&mut draft);
            }
            if draft.admitted.is_empty() {
                self.decode(&mut draft)?;
                if draft.line.preempted.is_empty() {
                    self.swap_in(&mut draft);
                }
            }
        }
        Ok(self.finish_step(draft))
    }

    /// P of the rules.
    fn prefill(&mut self, draft: &mut Draft) {
        let p = self.params;
        while let Some(&id) = self.waiting.front() {
            let request = self.requests[id];
            let mut tokens = request.len() - request.computed;
            let mut limit = p.max_model_len.min(p.max_num_batched_tokens);
            if p.chunked {
                tokens = tokens.min(p.max_num_batched_tokens - draft.tokens);
                limit = p.max_model_len;
            }
            let need = ceil(request.len(), p.block_size);
            let mut refuse = |status| {
                draft.line.admissions_refused.push((id as u32, need as u32, self.free as u32, status));
            };
            if tokens > limit || p.num_gpu_blocks - need < p.watermark_blocks {
                if tokens <= limit {
                    refuse("never");
                }
                self.waiting.pop_front();
                draft.line.rejected.push(id as u32);
                continue;
            }
            if self.free - need < p.watermark_blocks {
                refuse("later");
                break;
            }
            let no_tokens = draft.tokens >= p.max_num_batched_tokens
                || tokens == 0
                || draft.tokens + tokens > p.max_num_batched_tokens;
            if no_tokens || draft.slots + 1 > p.max_num_seqs {
                break;
            }
            self.waiting.pop_front();
            self.free -= need;
            self.requests[id].held = need;
            self.requests[id].slots = request.len();
            draft.line.prefills.push((id as u32, tokens as u32, 'W'));
            draft.admitted.push(id);
            draft.tokens += tokens;
            draft.slots += 1;
        }
    }

    /// D of the rules.
    fn decode(&mut self, draft: &mut Draft) -> Result<(), Raised> {
        let p = self.params;
        while let Some(&id) = self.running.front() {
            let mut tokens = self.requests[id].rest();
            if p.chunked {
                tokens = tokens.min(p.max_num_batched_tokens - draft.tokens);
                if tokens == 0 {
                    break;
                }
            }
            self.running.pop_front();
            let mut scheduled = true;
            while self.touched(id) > self.free {
                let victim = self.running.pop_back().unwrap_or(id);
                self.preempt(victim, draft)?;
                if victim == id {
                    scheduled = false;
                    break;
                }
            }
            if !scheduled {
                continue;
            }
            if self.requests[id].decoding {
                self.append_slots(id);
                draft.decodes.push(id);
            } else {
                draft.line.prefills.push((id as u32, tokens as u32, 'C'));
                draft.continued.push(id);
            }
            draft.tokens += tokens;
            if p.chunked {
                draft.slots += 1;
            }
        }
        Ok(())
    }

    /// V of the rules.
    fn preempt(&mut self, id: usize, draft: &mut Draft) -> Result<(), Raised> {
        let held = self.requests[id].held;
        if self.params.swap {
            if self.free_cpu < self.swap_need(id) {
                return Err(Raised(id as u32));
            }
            self.free += held;
            self.free_cpu -= held;
            draft.line.preempted.push((id as u32, 'S'));
            draft.line.swapped_out.push((id as u32, held as u32));
            draft.swapped_out.push(id);
        } else {
            self.free += held;
            let Request { prompt, output, generated, .. } = self.requests[id];
            self.requests[id] = Request { prompt, output, generated, ..Request::default() };
            draft.line.preempted.push((id as u32, 'R'));
            draft.recomputed.push(id);
        }
        Ok(())
    }

    /// S of the rules.
    fn swap_in(&mut self, draft: &mut Draft) {
        let p = self.params;
        while let Some(&id) = self.swapped.front() {
            let need = self.swap_need(id);
            let mut refuse = |status| {
                draft.line.swap_ins_refused.push((id as u32, need as u32, self.free as u32, status));
            };
            if p.num_gpu_blocks < need {
                refuse("never");
                self.swapped.pop_front();
                draft.dropped_swapped.push(id);
                continue;
            }
            if self.free - need < p.watermark_blocks {
                refuse("later");
                break;
            }
            let tokens = self.requests[id].rest();
            if draft.tokens + tokens > p.max_num_batched_tokens || draft.slots + 1 > p.max_num_seqs {
                break;
            }
            self.swapped.pop_front();
            let held = self.requests[id].held;
            self.free_cpu += held;
            self.free -= held;
            draft.line.swapped_in.push((id as u32, held as u32));
            if self.requests[id].decoding {
                self.append_slots(id);
                draft.swapped_decodes.push(id);
            } else {
                draft.line.prefills.push((id as u32, tokens as u32, 'S'));
                draft.swapped_prefills.push(id);
            }
            draft.tokens += tokens;
            draft.slots += 1;
        }
    }

    fn touched(&self, id: usize) -> i64 {
        let (request, size) = (&self.requests[id], self.params.block_size);
        1 + ceil(request.len() - request.slots - (size - request.slots % size), size)
    }

    fn swap_need(&self, id: usize) -> i64 {
        self.requests[id].slots / self.params.block_size + self.touched(id)
    }

    fn append_slots(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let blocks = ceil(request.len(), self.params.block_size);
        self.free -= blocks - request.held;
        request.held = blocks;
        request.slots = request.len();
    }

    /// Queues, then "runs the model".
    fn finish_step(&mut self, draft: Draft) -> Line {
        let Draft { mut line, .. } = draft;
        let left_over = std::mem::take(&mut self.running);
        let parts = if self.params.chunked {
            [&draft.swapped_decodes, &draft.swapped_prefills, &draft.decodes, &draft.continued, &draft.admitted]
        } else {
            [&draft.decodes, &draft.continued, &draft.swapped_decodes, &draft.swapped_prefills, &draft.admitted]
        };
        self.running.extend(left_over.into_iter().chain(parts.into_iter().flatten().copied()));
        for id in draft.recomputed {
            self.waiting.push_front(id);
        }
        self.swapped.extend(draft.swapped_out);
        line.rejected.extend(draft.dropped_swapped.iter().map(|&id| id as u32));
        line.prefills.sort_by_key(|prefill| ['W', 'C', 'S'].iter().position(|source| *source == prefill.2));
        line.decodes = draft.decodes.iter().chain(&draft.swapped_decodes).map(|&id| id as u32).collect();
        line.queues =
            [&self.waiting, &self.running, &self.swapped].map(|queue| queue.iter().map(|&id| id as u32).collect());
        line.free = [self.free as u32, self.free_cpu as u32];
        let decodes = line.decodes.iter().map(|&id| (id, 1));
        let scheduled: Vec<(u32, u32)> =
            line.prefills.iter().map(|&(id, tokens, _)| (id, tokens)).chain(decodes).collect();
        for (id, tokens) in scheduled {
            let request = &mut self.requests[id as usize];
            request.computed += i64::from(tokens);
            if request.computed < request.len() {
                continue;
            }
            request.decoding = true;
            request.generated += 1;
            if request.len() > self.params.max_model_len || request.generated == request.output {
                self.free += request.held;
                self.running.retain(|&other| other != id as usize);
                line.finished.push(id);
            }
        }
        line
    }
}
