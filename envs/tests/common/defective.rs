//! Memory that goes wrong, and memory whose contents are computed rather than drawn.

use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::kv::BlockId;
use kvtide_envs::memory::{
    Contents, Filled, HostMemory, KvShape, MemoryBackend, MemoryError, MemorySource, Span, Work,
};
use kvtide_envs::sched::BlockCopy;
use kvtide_envs::tier::{Route, Routes, Tier, Tiers};
use kvtide_envs::time::Micros;

/// What a defective backend does with the work it is given.
pub type Defect = fn(&mut Copies, u64);

#[derive(Debug, Clone, Default)]
pub struct Copies {
    pub out: Vec<BlockCopy>,
    pub back: Vec<BlockCopy>,
    pub spans: Vec<Span>,
    pub tables: Vec<BlockId>,
    pub seeds: Vec<u64>,
    /// Whether tokens are written before blocks are copied out.
    pub writes_first: bool,
}

/// Host memory behind something that goes wrong.
#[derive(Debug)]
pub struct Defective {
    memory: HostMemory,
    defect: Defect,
    steps: u64,
    contents: Contents,
    /// What every step takes, if that is measured.
    takes: Option<Micros>,
}

impl Defective {
    /// Memory without a defect on which every step takes `takes`.
    pub fn measured(shape: KvShape, engine: &EngineConfig, takes: Micros) -> MemorySource {
        let memory = HostMemory::new(shape, Tiers::from_fn(|tier| engine.num_blocks(tier))).unwrap();
        let (defect, contents): (Defect, _) = (|_, _| {}, Contents::Drawn);
        MemorySource::lend(
            Box::new(Defective { memory, defect, steps: 0, contents, takes: Some(takes) }),
            shape,
            engine,
        )
    }

    /// Pools of `engine` in ordinary memory, blocks of `shape`.
    pub fn source(shape: KvShape, engine: &EngineConfig, contents: Contents, defect: Defect) -> MemorySource {
        let memory = HostMemory::new(shape, Tiers::from_fn(|tier| engine.num_blocks(tier))).unwrap();
        MemorySource::lend(Box::new(Defective { memory, defect, steps: 0, contents, takes: None }), shape, engine)
    }
}

impl MemoryBackend for Defective {
    fn name(&self) -> String {
        "defective memory".to_owned()
    }

    fn contents(&self) -> Contents {
        self.contents
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        let mut copies = Copies {
            out: work.copies[Route::GpuToHost].to_vec(),
            back: work.copies[Route::HostToGpu].to_vec(),
            spans: work.spans.to_vec(),
            tables: work.tables.to_vec(),
            seeds: work.seeds.to_vec(),
            writes_first: false,
        };
        if self.contents == Contents::Computed {
            // Computed of anything: here of the step and the place in it. Equal texts have unequal bytes.
            for span in &mut copies.spans {
                span.seeds = copies.seeds.len();
                let seed = self.steps << 32 | u64::from(span.id.0) << 16;
                copies.seeds.extend((0..u64::from(span.tokens)).map(|token| seed + token));
            }
        }
        (self.defect)(&mut copies, self.steps);
        self.steps += 1;
        let whole = Work {
            copies: Routes::from_fn(|route| match route {
                Route::GpuToHost => &copies.out[..],
                Route::HostToGpu => &copies.back[..],
            }),
            spans: &copies.spans,
            tables: &copies.tables,
            seeds: &copies.seeds,
            block_size: work.block_size,
        };
        if copies.writes_first {
            self.memory.submit(&Work { copies: Routes::default(), ..whole })?;
            return self.memory.submit(&Work { spans: &[], ..whole });
        }
        self.memory.submit(&whole)
    }

    fn wait(&mut self) -> Result<Option<Micros>, MemoryError> {
        self.memory.wait().map(|_| self.takes)
    }

    fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError> {
        self.memory.checksums(tier, blocks, sums)
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.steps = 0;
        self.memory.reset()
    }
}
