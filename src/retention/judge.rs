//! What candidates are worth on traffic none was learned from, and which is shipped.

use std::collections::BTreeMap;

use kvtide_envs::env::ServedEpisode;
use kvtide_envs::seed;
use rayon::prelude::*;
use serde::Serialize;

use super::episodes::Episodes;
use super::{Candidate, RetentionConfig, RetentionError};
use crate::agent::{Attained, Gain};
use crate::evaluate::Watch;

/// What a candidate came to behind its guard, beside LRU in the same episodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judged {
    /// Share of requests that missed no target, a world counting by its episodes.
    pub attained: f64,
    /// Points of that more than LRU's.
    pub gain: Gain,
    /// Share of prompt tokens that the prefix cache had, over all worlds alike.
    pub hits: f64,
    /// World by world.
    pub worlds: Vec<WorldHits>,
    /// Share of its decisions that the guard took back.
    pub taken_back: f64,
}

/// Hits of one world.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WorldHits {
    /// Its number.
    pub world: usize,
    /// Episodes.
    pub episodes: usize,
    /// Share of prompt tokens that hit.
    pub hits: f64,
    /// The same of LRU.
    pub lru: f64,
    /// Share of requests that missed no target.
    pub attained: f64,
    /// The same of LRU.
    pub lru_attained: f64,
}

/// Most points of hits that what ships may lose to LRU in any world: the guard's own budget.
pub const MOST_LOST: f64 = 0.5;

/// Serves the validation episodes under every candidate, the first of which is LRU. `None` if stopped.
pub(super) fn judge(
    validation: &Episodes<'_>,
    candidates: &[Candidate],
    config: &RetentionConfig,
    watch: &dyn Watch,
) -> Result<Option<Vec<Judged>>, RetentionError> {
    let episodes = config.judged as usize;
    watch.planned(candidates.len() * episodes);
    let root = seed::derive(config.seed, "retention.judged", 0);
    let retains: Result<Vec<_>, RetentionError> =
        candidates.iter().map(|candidate| validation.guarded(candidate.tree.as_ref())).collect();
    let retains = retains?;
    let play = |task: usize| {
        let seed = seed::derive(root, "episode", (task % episodes) as u64);
        let served = validation.serve(seed, retains[task / episodes].clone(), false);
        watch.done();
        served
    };
    let played: Result<Vec<Option<ServedEpisode>>, RetentionError> =
        (0..candidates.len() * episodes).into_par_iter().map(play).collect();
    let Some(played) = played?.into_iter().collect::<Option<Vec<ServedEpisode>>>() else { return Ok(None) };
    let lru = &played[..episodes];
    Ok(Some(played.chunks_exact(episodes).map(|served| judged(served, lru)).collect()))
}

fn judged(served: &[ServedEpisode], lru: &[ServedEpisode]) -> Judged {
    let attained = |served: &[ServedEpisode]| -> Vec<Attained> {
        served.iter().map(|served| Attained::of(&served.episode)).collect()
    };
    let (mine, theirs) = (attained(served), attained(lru));
    let mut worlds: BTreeMap<usize, (Vec<&ServedEpisode>, Vec<&ServedEpisode>)> = BTreeMap::new();
    for (mine, theirs) in served.iter().zip(lru) {
        let world = worlds.entry(mine.episode.served.world).or_default();
        world.0.push(mine);
        world.1.push(theirs);
    }
    let share = |served: &[&ServedEpisode]| {
        Attained::share(&served.iter().map(|served| Attained::of(&served.episode)).collect::<Vec<Attained>>())
    };
    let of_world = |(world, (mine, theirs)): (usize, (Vec<&ServedEpisode>, Vec<&ServedEpisode>))| WorldHits {
        world,
        episodes: mine.len(),
        hits: hits(&mine),
        lru: hits(&theirs),
        attained: share(&mine),
        lru_attained: share(&theirs),
    };
    let worlds: Vec<WorldHits> = worlds.into_iter().map(of_world).collect();
    let count: usize = worlds.iter().map(|world| world.episodes).sum();
    let (chosen, taken_back) =
        served.iter().fold((0, 0), |(chosen, back), served| (chosen + served.releases.0, back + served.releases.1));
    Judged {
        attained: Attained::share(&mine),
        gain: Gain::between(&mine, &theirs),
        hits: worlds.iter().map(|world| world.hits * world.episodes as f64).sum::<f64>() / count.max(1) as f64,
        worlds,
        taken_back: if chosen > 0 { taken_back as f64 / chosen as f64 } else { 0.0 },
    }
}

/// Share of prompt tokens of `served` that were cached.
fn hits(served: &[&ServedEpisode]) -> f64 {
    let (hit, of) =
        served.iter().fold((0, 0), |(hit, of), served| (hit + served.hit_tokens, of + served.prompt_tokens));
    if of > 0 { hit as f64 / of as f64 } else { 0.0 }
}

impl Judged {
    /// Points of hits less than LRU in the world that loses most; 0 where none does.
    pub fn most_lost(&self) -> f64 {
        self.worlds.iter().map(|world| 100.0 * (world.lru - world.hits)).fold(0.0, f64::max)
    }
}

/// The place of the candidate to ship: of those that lose no world more hits than the guard allows and attain more than LRU beyond
/// chance, the one that attains most. `None` where there is none: LRU is then what ships.
pub(super) fn choose(judged: &[(Candidate, Judged)]) -> Option<usize> {
    let ships = |(_, judged): &(Candidate, Judged)| judged.gain.is_sure() && judged.most_lost() <= MOST_LOST;
    let places = (0..judged.len()).filter(|&place| judged[place].0.tree.is_some() && ships(&judged[place]));
    places.max_by(|&a, &b| judged[a].1.attained.total_cmp(&judged[b].1.attained).then(b.cmp(&a)))
}
