//! A node's memory: plans in, work for the backend out, and a look at what it left.

use super::audit::{Audit, TableSlice};
use super::{KvShape, MemoryBackend, MemoryError, MemoryReport, Span, Work};
use crate::kv::{BlockId, Content, blocks_for};
use crate::sched::{PreemptedAs, RequestId, Scheduler, StepPlan};
use crate::tier::{Route, Routes, Tier, Tiers};
use crate::time::Micros;

/// The memory behind one node: a backend, and the books kept on it.
#[derive(Debug)]
pub struct Memory {
    backend: Box<dyn MemoryBackend>,
    audit: Audit,
    block_size: u32,
    /// Of the step submitted last, kept so that a step allocates little.
    spans: Vec<Span>,
    tables: Vec<BlockId>,
    seeds: Vec<u64>,
}

impl Memory {
    /// Empty memory on `backend`, whose blocks are of `shape`.
    pub fn new(backend: Box<dyn MemoryBackend>, shape: KvShape) -> Memory {
        Memory {
            audit: Audit::new(backend.as_ref(), shape),
            backend,
            block_size: shape.block_size,
            spans: Vec::new(),
            tables: Vec::new(),
            seeds: Vec::new(),
        }
    }

    /// A request arrived that may get blocks; `content` says what its tokens are.
    pub fn arrived(&mut self, id: RequestId, content: Content) {
        self.audit.arrived(id, content);
    }

    /// Carries out the step that `scheduler` has just planned, or sends it off. Blocks that come back from the host are
    /// compared with what left.
    ///
    /// # Errors
    /// The device failed, or a block does not hold what was written to it.
    pub fn submit(&mut self, scheduler: &Scheduler, plan: &StepPlan) -> Result<(), MemoryError> {
        self.read(scheduler, plan);
        let work = Work {
            copies: Routes::from_fn(|route| &plan.copies[route][..]),
            spans: &self.spans,
            tables: &self.tables,
            seeds: &self.seeds,
            block_size: self.block_size,
        };
        self.backend.submit(&work)?;
        self.audit.copied(&work);
        check_returned(&mut self.audit, self.backend.as_mut(), plan, &work)?;
        // What these have from now on is computed again, or by others, or has just been compared.
        let dropped =
            plan.preempted.iter().filter(|victim| victim.how == PreemptedAs::Recompute).map(|victim| victim.id);
        for id in dropped.chain(plan.moved[Route::HostToGpu].iter().map(|swap| swap.0)) {
            self.audit.restarted(id);
        }
        self.audit.wrote(&work, self.backend.as_mut())?;
        for &id in &plan.rejected {
            self.audit.left(id);
        }
        Ok(())
    }

    /// Waits for the first step submitted and not waited for. How long it took, if the backend measures.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&mut self) -> Result<Option<Micros>, MemoryError> {
        self.backend.wait()
    }

    /// The last token of these requests is there; their blocks, which `scheduler` is about to free, are looked at for the
    /// last time.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn finishing(&mut self, scheduler: &Scheduler, requests: &[RequestId]) -> Result<(), MemoryError> {
        for &id in requests {
            for tier in Tier::ALL {
                self.check(id, tier, scheduler.table_in(tier, id))?;
            }
            self.audit.left(id);
        }
        Ok(())
    }

    /// Looks at every block that a request holds, in every tier.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn verify(&mut self, scheduler: &Scheduler) -> Result<(), MemoryError> {
        for id in (0..scheduler.num_requests() as u32).map(RequestId) {
            let tables = Tiers::from_fn(|tier| scheduler.table_in(tier, id));
            if tables.iter().any(|table| !table.is_empty()) {
                for tier in Tier::ALL {
                    self.check(id, tier, tables[tier])?;
                }
            }
        }
        Ok(())
    }

    /// What was done so far.
    pub fn report(&self) -> MemoryReport {
        self.audit.report()
    }

    fn check(&mut self, id: RequestId, tier: Tier, blocks: &[BlockId]) -> Result<(), MemoryError> {
        let tokens = self.audit.written(id);
        self.audit.check(TableSlice { id, tier, first: 0, blocks, tokens }, self.backend.as_mut())
    }

    /// Takes down what the plan computes, and where.
    fn read(&mut self, scheduler: &Scheduler, plan: &StepPlan) {
        self.spans.clear();
        self.tables.clear();
        self.seeds.clear();
        let unfinished: Vec<RequestId> =
            plan.prefills.iter().filter(|prefill| !prefill.samples).map(|prefill| prefill.id).collect();
        for scheduled in scheduler.scheduled(plan) {
            let (id, context, end) = (scheduled.id, scheduled.context, scheduled.context + scheduled.tokens);
            let (table, seeds) = (self.tables.len(), self.seeds.len());
            let samples = !unfinished.contains(&id);
            self.spans.push(Span { id, context, tokens: scheduled.tokens, samples, table, seeds });
            self.tables.extend_from_slice(&scheduler.table(id)[..blocks_for(end, self.block_size) as usize]);
            self.seeds.extend_from_slice(&self.audit.seeds(id, end)[context as usize..]);
        }
    }
}

/// Blocks that came back hold what left.
fn check_returned(
    audit: &mut Audit,
    backend: &mut dyn MemoryBackend,
    plan: &StepPlan,
    work: &Work<'_>,
) -> Result<(), MemoryError> {
    let mut copies = plan.copies[Route::HostToGpu].iter();
    for &(id, blocks) in &plan.moved[Route::HostToGpu] {
        let returned: Vec<BlockId> = copies.by_ref().take(blocks as usize).map(|copy| copy.dst).collect();
        // All of it was found in the prefix cache.
        let Some(first) = returned.first() else { continue };
        // Those before it were.
        let place = work.spans.iter().find(|span| span.id == id).and_then(|span| {
            let index = work.table(span).iter().position(|block| block == first)?;
            Some((span.context, index as u32))
        });
        let (tokens, first) = place.ok_or(MemoryError::Astray { request: id.0, block: first.0 })?;
        audit.check_returned(TableSlice { id, tier: Tier::Gpu, first, blocks: &returned, tokens }, backend)?;
    }
    Ok(())
}
