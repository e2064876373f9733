//! Requests that have finished since somebody last looked.

use crate::env::Node;
use crate::sched::{Phase, RequestId, RequestView};

/// Who has been seen, and who of them was not done then.
#[derive(Debug, Clone, Default)]
pub(super) struct Answers {
    /// Requests handed out by the scheduler so far.
    known: u32,
    /// Those that were not done at the last look.
    open: Vec<RequestId>,
}

impl Answers {
    /// Shows each request that has finished since the last call, in the order they arrived.
    pub(super) fn finished(&mut self, node: &Node, mut each: impl FnMut(RequestId, &RequestView)) {
        let scheduler = node.scheduler();
        let known = scheduler.num_requests() as u32;
        self.open.extend((self.known..known).map(RequestId));
        self.known = known;
        self.open.retain(|&id| {
            let request = scheduler.view(id);
            if request.phase == Phase::Finished {
                each(id, &request);
            }
            !matches!(request.phase, Phase::Finished | Phase::Rejected)
        });
    }
}
