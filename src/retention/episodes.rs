//! Episodes served under a table, with somebody to choose classes.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};

use kvtide_envs::env::{Guarded, Retaining, ServedEpisode, ServingArena};
use kvtide_envs::sched::Retain;
use kvtide_envs::seed;
use kvtide_rules::retention::KEEP_TURNOVERS;
use kvtide_runtime::{OwnedTable, Retention};
use rayon::prelude::*;

use super::RetentionError;
use crate::agent::Attained;
use crate::distil::{RetentionSample, RetentionTree};
use crate::evaluate::Watch;
use crate::export;

/// What episodes came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score {
    /// Share of requests that missed no target, as [`Attained::share`] has it.
    pub(super) attained: f64,
    /// Share of prompt tokens that were cached, an episode counting as much as another.
    pub(super) hits: f64,
}

impl Score {
    fn of(served: &[ServedEpisode]) -> Score {
        let attained: Vec<Attained> = served.iter().map(|served| Attained::of(&served.episode)).collect();
        let shares = served.iter().map(|served| served.hit_tokens as f64 / served.prompt_tokens.max(1) as f64);
        Score { attained: Attained::share(&attained), hits: shares.sum::<f64>() / served.len().max(1) as f64 }
    }

    /// More requests on time; of as many, more tokens cached.
    pub(super) fn total_cmp(self, other: Score) -> Ordering {
        self.attained.total_cmp(&other.attained).then(self.hits.total_cmp(&other.hits))
    }
}

/// Where candidates are served.
#[derive(Clone, Copy)]
pub(super) struct Episodes<'a> {
    /// What episodes are drawn from.
    pub(super) arena: &'a ServingArena,
    /// Whose heads decide everything else.
    pub(super) table: &'a [u8],
    /// Ends it once set.
    pub(super) stop: &'a AtomicBool,
}

impl Episodes<'_> {
    /// The episode of `seed` with `retain` to choose classes. `None` if stopped.
    pub(super) fn serve(
        &self,
        seed: u64,
        retain: Retain,
        is_collecting: bool,
    ) -> Result<Option<ServedEpisode>, RetentionError> {
        let table = OwnedTable::parse(self.table.to_vec())?;
        let mut controller = Retaining::new(Guarded::new(table.table()?), retain);
        let stopped = || self.stop.load(atomic::Ordering::Relaxed);
        Ok(self.arena.serve(seed, &mut controller, is_collecting, &stopped)?)
    }

    /// Releases of so many episodes under LRU, labelled. Those of the end, of which nobody can know what would have become of
    /// them, are left out. `None` if stopped.
    pub(super) fn labelled(
        &self,
        root: u64,
        episodes: u32,
        watch: &dyn Watch,
    ) -> Result<Option<Vec<RetentionSample>>, RetentionError> {
        watch.planned(episodes as usize);
        let collect = |episode: u32| -> Result<Option<Vec<RetentionSample>>, RetentionError> {
            let lru = Retain::Policy(Arc::new(Retention::Normal));
            let seed = seed::derive(root, "episode", u64::from(episode));
            let Some(served) = self.serve(seed, lru, true)? else { return Ok(None) };
            watch.done();
            let pool = u64::from(served.num_gpu_blocks);
            let known = served
                .samples
                .iter()
                .filter(|sample| sample.asked_at.is_some() || sample.evicted + KEEP_TURNOVERS * pool <= served.evicted);
            Ok(Some(known.map(|sample| RetentionSample::of_future(sample, served.num_gpu_blocks)).collect()))
        };
        let collected: Result<Vec<Option<Vec<RetentionSample>>>, RetentionError> =
            (0..episodes).into_par_iter().map(collect).collect();
        let collected: Option<Vec<Vec<RetentionSample>>> = collected?.into_iter().collect();
        Ok(collected.map(|collected| collected.concat()))
    }

    /// What each of `trees` comes to in the same episodes, without a guard: what is learned by. `None` if stopped.
    pub(super) fn scores(
        &self,
        trees: &[RetentionTree],
        root: u64,
        episodes: u32,
        watch: &dyn Watch,
    ) -> Result<Option<Vec<Score>>, RetentionError> {
        let episodes = episodes as usize;
        let play = |task: usize| -> Result<Option<ServedEpisode>, RetentionError> {
            let tree: Arc<RetentionTree> = Arc::new(trees[task / episodes].clone());
            let seed = seed::derive(root, "episode", (task % episodes) as u64);
            let served = self.serve(seed, Retain::Policy(tree), false)?;
            watch.done();
            Ok(served)
        };
        let played: Result<Vec<Option<ServedEpisode>>, RetentionError> =
            (0..trees.len() * episodes).into_par_iter().map(play).collect();
        let Some(played) = played?.into_iter().collect::<Option<Vec<ServedEpisode>>>() else { return Ok(None) };
        Ok(Some(played.chunks_exact(episodes).map(Score::of).collect()))
    }

    /// The table with `tree` behind the guard that a node puts it behind.
    pub(super) fn guarded(&self, tree: Option<&RetentionTree>) -> Result<Retain, RetentionError> {
        let Some(tree) = tree else { return Ok(Retain::Policy(Arc::new(Retention::Normal))) };
        // As long as the program: there are a few candidates.
        let bytes: &'static [u8] = export::add_retention(self.table, tree)?.leak();
        Ok(Retain::Guarded(kvtide_runtime::Table::parse(bytes)?.trusted_retention()))
    }
}
