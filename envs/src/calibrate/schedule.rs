//! Which steps and copies are timed, and which of them are held out.
//!
//! Everything is laid out on two grids that share no value: what is fitted stands on powers of two and on both sides of
//! the tiles of matrix products, what is held out between them. A held-out point is thus neither a repeat nor, in any of
//! the numbers that a price depends on, beyond what was fitted.

use serde::{Deserialize, Serialize};

use super::{Direction, Role, StepShape};
use crate::cost::Chunk;
use crate::deploy::EngineConfig;

/// Most sequences and most tokens of a timed step, and most blocks of a timed copy.
const MAX_SEQS: u32 = 1024;
const MAX_TOKENS: u32 = 8192;
const MAX_BLOCKS: u32 = 1024;

/// Contexts of decodes.
const CONTEXTS: [u32; 5] = [128, 512, 2048, 8192, 32_000];
const CONTEXTS_BETWEEN: [u32; 4] = [256, 1024, 4096, 16_384];
/// Batches that are held out; those fitted are powers of two.
const BATCHES_BETWEEN: [u32; 9] = [3, 6, 12, 24, 48, 96, 192, 384, 768];
/// Contexts and sizes of chunks.
const BEFORE: [u32; 4] = [512, 2048, 8192, 24_000];
const BEFORE_BETWEEN: [u32; 3] = [1024, 4096, 16_384];
const CHUNKS: [u32; 9] = [16, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
const CHUNKS_BETWEEN: [u32; 22] =
    [24, 40, 80, 112, 160, 224, 300, 360, 416, 480, 576, 700, 832, 960, 1100, 1300, 1500, 1700, 2500, 3500, 5000, 7000];
/// Contexts of a batch of mixed ones, in quarters of their mean.
const MIXTURE: [u32; 4] = [1, 9, 2, 4];
/// Blocks of a copy.
const BLOCKS: [u32; 6] = [1, 4, 16, 64, 256, 1024];
const BLOCKS_BETWEEN: [u32; 6] = [2, 10, 40, 100, 400, 700];

/// What is to be measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementPlan {
    /// Tokens of a block.
    pub block_size: u32,
    /// How often each point is repeated.
    pub repeats: u32,
    /// Steps.
    pub steps: Vec<(Role, StepShape)>,
    /// Copies: which way, and how many blocks.
    pub transfers: Vec<(Role, Direction, u32)>,
    /// Steps with blocks copied out at once.
    pub overlaps: Vec<(Role, StepShape, u32)>,
}

impl MeasurementPlan {
    /// Points that `engine` allows, at most about `budget` of them, each with `repeats` repeats.
    ///
    /// A smaller budget thins every kind of point alike and keeps the ends of its range. All there are is about 400. A third
    /// of them still finds half of all steps within 2 %, but misses tiles of matrix products, and with them up to 15 %
    /// at some sizes.
    pub fn new(engine: &EngineConfig, budget: u32, repeats: u32) -> MeasurementPlan {
        let limits = EngineLimits::of(engine);
        let kinds = [limits.decodes(), limits.prefills(), EngineLimits::mixed()].map(|shapes| limits.split(shapes));
        let transfers: Vec<(Role, Direction, u32)> = [Direction::In, Direction::Out]
            .into_iter()
            .flat_map(|direction| limits.blocks().map(move |(role, blocks)| (role, direction, blocks)))
            .collect();
        let overlaps = limits.overlaps();
        let all = kinds.iter().flatten().map(Vec::len).sum::<usize>() + transfers.len() + overlaps.len();
        let share = (f64::from(budget) / all.max(1) as f64).min(1.0);
        let mut steps = Vec::new();
        for [fit, held_out] in kinds {
            steps.extend(thinned(fit, share).into_iter().map(|shape| (Role::Fit, shape)));
            steps.extend(thinned(held_out, share).into_iter().map(|shape| (Role::HeldOut, shape)));
        }
        MeasurementPlan { block_size: engine.block_size, repeats, steps, transfers, overlaps }
    }

    /// Measurements in all, that of launches included.
    pub fn len(&self) -> usize {
        1 + self.steps.len() + self.transfers.len() + self.overlaps.len()
    }

    /// Whether there is nothing to measure but launches.
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }
}

/// A share of `items`, evenly, its first and last among them, but at least four.
fn thinned<T>(items: Vec<T>, share: f64) -> Vec<T> {
    let count = items.len();
    let keep = ((count as f64 * share).round() as usize).clamp(4.min(count), count);
    if keep == count {
        return items;
    }
    let mut next = 0;
    let mut kept = Vec::with_capacity(keep);
    for (index, item) in items.into_iter().enumerate() {
        if index == next * (count - 1) / (keep - 1) {
            kept.push(item);
            next += 1;
        }
    }
    kept
}

/// What an engine allows.
struct EngineLimits {
    seqs: u32,
    tokens: u32,
    length: u32,
    blocks: u32,
    /// Blocks of a copy: what the host pool holds, or, where the engine has none, what the pool does.
    copied: u32,
    block_size: u32,
}

/// Shapes that are fitted, and shapes that are held out.
type Shapes = [Vec<StepShape>; 2];

fn chunk(context: u32, tokens: u32) -> Chunk {
    Chunk { context, tokens }
}

fn decodes(batch: u32, context: u32) -> StepShape {
    StepShape { decodes: vec![context; batch as usize], chunks: Vec::new() }
}

fn chunks(chunks: Vec<Chunk>) -> StepShape {
    StepShape { decodes: Vec::new(), chunks }
}

fn mixture(batch: u32, mean: u32) -> StepShape {
    let decodes = MIXTURE.iter().cycle().take(batch as usize).map(|quarters| mean / 4 * quarters).collect();
    StepShape { decodes, chunks: Vec::new() }
}

/// Every second one of all pairs, as the white fields of a board.
fn white<'a>(left: &'a [u32], right: &'a [u32], colour: usize) -> impl Iterator<Item = (u32, u32)> + 'a {
    left.iter().enumerate().flat_map(move |(row, &a)| {
        let fields = right.iter().enumerate().filter(move |(column, _)| (row + column) % 2 == colour);
        fields.map(move |(_, &b)| (a, b))
    })
}

fn pairs<'a>(left: &'a [u32], right: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
    left.iter().flat_map(move |&a| right.iter().map(move |&b| (a, b)))
}

impl EngineLimits {
    fn of(engine: &EngineConfig) -> EngineLimits {
        EngineLimits {
            seqs: engine.max_num_seqs.min(MAX_SEQS),
            tokens: engine.max_num_batched_tokens.min(MAX_TOKENS),
            length: engine.max_model_len,
            blocks: engine.num_usable_blocks(),
            copied: match engine.num_cpu_blocks {
                0 => engine.num_usable_blocks(),
                host => host.min(engine.num_usable_blocks()),
            },
            block_size: engine.block_size,
        }
    }

    fn allow(&self, shape: &StepShape) -> bool {
        let lengths = shape.decodes.iter().map(|context| context + 1);
        let lengths = lengths.chain(shape.chunks.iter().map(|chunk| chunk.context + chunk.tokens));
        let blocks = self.blocks_of(shape);
        let load = shape.load();
        load.sequences() <= self.seqs
            && load.tokens() <= self.tokens
            && blocks <= u64::from(self.blocks)
            && lengths.max().is_some_and(|length| length <= self.length)
    }

    /// Blocks that a shape takes.
    fn blocks_of(&self, shape: &StepShape) -> u64 {
        let lengths = shape.decodes.iter().map(|context| context + 1);
        let lengths = lengths.chain(shape.chunks.iter().map(|chunk| chunk.context + chunk.tokens));
        lengths.map(|length| u64::from(length.div_ceil(self.block_size))).sum()
    }

    /// Those of `shapes` that are allowed, and of the held-out ones those within what is fitted.
    fn split(&self, [mut fit, mut held_out]: Shapes) -> Shapes {
        fit.retain(|shape| self.allow(shape));
        let most =
            fit.iter().map(extent).fold([0; 4], |most, one| std::array::from_fn(|axis| most[axis].max(one[axis])));
        held_out.retain(|shape| self.allow(shape) && extent(shape).iter().zip(most).all(|(one, most)| *one <= most));
        [fit, held_out]
    }

    /// Powers of two, and the most there may be.
    fn batches(&self) -> Vec<u32> {
        let mut batches: Vec<u32> = (0..=10).map(|power| 1 << power).filter(|batch| *batch < self.seqs).collect();
        batches.push(self.seqs);
        batches
    }

    fn decodes(&self) -> Shapes {
        let batches = self.batches();
        let mut fit: Vec<StepShape> =
            pairs(&batches, &CONTEXTS).map(|(batch, context)| decodes(batch, context)).collect();
        fit.extend(white(&batches, &CONTEXTS_BETWEEN, 0).map(|(batch, context)| decodes(batch, context)));
        fit.extend(pairs(&[4, 16, 64, 256], &[512, 4096]).map(|(batch, mean)| mixture(batch, mean)));
        let mut held_out: Vec<StepShape> =
            pairs(&BATCHES_BETWEEN, &CONTEXTS_BETWEEN).map(|(batch, context)| decodes(batch, context)).collect();
        held_out.extend(white(&batches, &CONTEXTS_BETWEEN, 1).map(|(batch, context)| decodes(batch, context)));
        held_out.extend(pairs(&[6, 24, 96], &[1024, 2048]).map(|(batch, mean)| mixture(batch, mean)));
        [fit, held_out]
    }

    /// Sizes of prompts at which the curve of matrix products gets its knots: close by where tiles of 64 and 128 tokens
    /// fill and begin, as long as one more of them is a large part of the whole.
    fn knots(&self) -> Vec<u32> {
        let mut sizes = vec![16, 32, 48, 64, 65, 96];
        let boundaries = (2..=8).map(|tile| 64 * tile).chain((5..=16).map(|tile| 128 * tile));
        sizes.extend(boundaries.flat_map(|boundary| [boundary, boundary + 1]));
        sizes.extend([3072, 4096, 6144, 8192]);
        sizes.retain(|size| *size < self.tokens);
        sizes.push(self.tokens);
        sizes
    }

    fn prefills(&self) -> Shapes {
        let mut fit: Vec<StepShape> = self.knots().into_iter().map(|tokens| chunks(vec![chunk(0, tokens)])).collect();
        fit.extend(pairs(&CHUNKS, &BEFORE).map(|(tokens, context)| chunks(vec![chunk(context, tokens)])));
        fit.extend([(2, 512), (4, 128), (4, 512), (8, 64), (8, 256), (16, 64)].map(several));
        let mut held_out: Vec<StepShape> =
            CHUNKS_BETWEEN.into_iter().map(|tokens| chunks(vec![chunk(0, tokens)])).collect();
        let every_third: Vec<u32> = CHUNKS_BETWEEN.into_iter().step_by(3).collect();
        held_out
            .extend(pairs(&every_third, &BEFORE_BETWEEN).map(|(tokens, context)| chunks(vec![chunk(context, tokens)])));
        held_out.extend([(2, 400), (3, 200), (5, 300), (6, 100), (12, 50)].map(several));
        [fit, held_out]
    }

    fn mixed() -> Shapes {
        let with = |((batch, context), (before, tokens)): ((u32, u32), (u32, u32))| StepShape {
            chunks: vec![chunk(before, tokens)],
            ..decodes(batch, context)
        };
        let rows: Vec<(u32, u32)> = pairs(&[4, 16, 64, 256], &[512, 2048, 8192]).collect();
        let columns = [(0, 128), (0, 512), (2048, 256), (0, 1792), (8192, 1024)];
        let board = rows.iter().enumerate().flat_map(|(row, &decodes)| {
            let fields = columns.iter().enumerate().filter(move |(column, _)| (row + column) % 2 == 0);
            fields.map(move |(_, &chunk)| with((decodes, chunk)))
        });
        let held_out = pairs(&[8, 32, 128], &[1024, 4096])
            .flat_map(|decodes| [(0, 256), (0, 700), (1024, 384), (4096, 900)].map(|chunk| with((decodes, chunk))));
        [board.collect(), held_out.collect()]
    }

    fn blocks(&self) -> impl Iterator<Item = (Role, u32)> {
        let most = self.copied.min(MAX_BLOCKS);
        let fit = BLOCKS.map(|blocks| (Role::Fit, blocks));
        let held_out = BLOCKS_BETWEEN.map(|blocks| (Role::HeldOut, blocks));
        let largest = BLOCKS.into_iter().filter(move |blocks| *blocks <= most).max().unwrap_or(0);
        fit.into_iter().chain(held_out).filter(move |(_, blocks)| *blocks <= largest)
    }

    fn overlaps(&self) -> Vec<(Role, StepShape, u32)> {
        let prompt = |tokens| chunks(vec![chunk(0, tokens)]);
        let fit = [decodes(32, 2048), prompt(1024)]
            .into_iter()
            .flat_map(|shape| [64, 256, 1024].map(|blocks| (Role::Fit, shape.clone(), blocks)));
        let held_out = [decodes(16, 1024), prompt(700)]
            .into_iter()
            .flat_map(|shape| [128, 512].map(|blocks| (Role::HeldOut, shape.clone(), blocks)));
        // What is copied is not what is computed.
        let fits = |shape: &StepShape, blocks: u32| {
            blocks <= self.copied && self.blocks_of(shape) + u64::from(blocks) <= u64::from(self.blocks)
        };
        fit.chain(held_out).filter(|(_, shape, blocks)| self.allow(shape) && fits(shape, *blocks)).collect()
    }
}

/// Prompts of one length in a step.
fn several((count, tokens): (usize, u32)) -> StepShape {
    chunks(vec![chunk(0, tokens); count])
}

/// The numbers a price depends on: tokens, sequences, context of decodes, pairs of chunks.
fn extent(shape: &StepShape) -> [u64; 4] {
    let load = shape.load();
    let pairs: f64 = shape.chunks.iter().map(|chunk| chunk.pairs()).sum();
    [load.tokens().into(), load.sequences().into(), load.decode_context, pairs as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::{Deployment, EngineKind};

    fn schedule(deployment: &str, engine: EngineKind, budget: u32) -> (MeasurementPlan, EngineConfig) {
        let engine = deployment.parse::<Deployment>().unwrap().engine(engine);
        (MeasurementPlan::new(&engine, budget, 5), engine)
    }

    #[test]
    fn every_point_is_one_the_engine_could_schedule() {
        for deployment in ["llama-3-8b@h200", "llama-3-8b@rtx-4090", "qwen2.5-7b@a10"] {
            for kind in [EngineKind::V0, EngineKind::V1] {
                let (schedule, engine) = schedule(deployment, kind, 1000);
                let limits = EngineLimits::of(&engine);
                assert!(schedule.steps.iter().all(|(_, shape)| limits.allow(shape)), "{deployment}");
                assert!((200..460).contains(&schedule.len()), "{deployment}: {}", schedule.len());
                assert_eq!(schedule, MeasurementPlan::new(&engine, 1000, 5));
            }
        }
    }

    #[test]
    fn held_out_points_are_within_the_fitted_ones_and_none_of_them() {
        let (schedule, _) = schedule("llama-3-8b@h200", EngineKind::V1, 1000);
        let of = |role: Role| {
            let steps = schedule.steps.iter().filter(move |(is, _)| *is == role).map(|(_, shape)| shape);
            steps.collect::<Vec<&StepShape>>()
        };
        let (fit, held_out) = (of(Role::Fit), of(Role::HeldOut));
        assert!(fit.len() > held_out.len() && held_out.len() * 3 > fit.len(), "{} {}", fit.len(), held_out.len());
        let extents: Vec<[u64; 4]> = fit.iter().map(|shape| extent(shape)).collect();
        for shape in held_out {
            assert!(!fit.contains(&shape));
            let held = extent(shape);
            assert!(!extents.contains(&held), "{shape:?}");
            for axis in 0..4 {
                assert!(extents.iter().any(|fitted| fitted[axis] <= held[axis]));
                assert!(extents.iter().any(|fitted| fitted[axis] >= held[axis]));
            }
        }
        for &(role, direction, blocks) in &schedule.transfers {
            let same = |other: &&(Role, Direction, u32)| other.1 == direction && other.2 == blocks;
            assert_eq!(schedule.transfers.iter().filter(same).count(), 1, "{role:?}");
        }
    }

    #[test]
    fn a_small_budget_thins_everything_alike() {
        let (all, engine) = schedule("llama-3-8b@h200", EngineKind::V1, 1000);
        let some = MeasurementPlan::new(&engine, 120, 5);
        assert!((100..=150).contains(&some.len()), "{}", some.len());
        assert!(some.steps.iter().all(|step| all.steps.contains(step)));
        assert_eq!(some.steps.first(), all.steps.first());
        assert_eq!(thinned((0..10).collect(), 0.5), [0, 2, 4, 6, 9]);
        assert_eq!(thinned(vec![1, 2], 0.1), [1, 2]);
    }
}
