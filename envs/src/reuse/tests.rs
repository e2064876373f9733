//! Replays against definitions: a list of cached blocks, searched and sorted at every reference.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::evict::BlockView;
use crate::time::Micros;
use crate::trace::Request;
use crate::workload::Workload;

static NEVER: AtomicBool = AtomicBool::new(false);

fn objects(blocks: &[u32]) -> References {
    let distinct = blocks.iter().max().map_or(0, |most| most + 1);
    References::of_objects(blocks.to_vec(), distinct).unwrap()
}

fn hits(references: &References, policy: &str, capacity: u32, rule: HitRule) -> u64 {
    replay(references, policy.parse().unwrap(), capacity, rule, 0, &NEVER).unwrap().hits
}

/// What a definition knows of a cached block.
#[derive(Debug, Clone, Copy)]
struct Known {
    block: u32,
    /// When it entered, and when it was used last.
    entered: usize,
    used: usize,
    /// Uses since it entered, the first included.
    uses: u64,
    /// Rank of the policies that age.
    rank: u64,
    next_use: u32,
    past_uses: u32,
}

/// The hits of a policy that evicts the least of its cached blocks.
fn by_least<K: Ord>(blocks: &[u32], capacity: usize, ages: bool, least: impl Fn(&Known) -> K) -> u64 {
    let (mut cached, mut hits, mut age): (Vec<Known>, u64, u64) = (Vec::new(), 0, 0);
    let references = objects(blocks);
    let asked = references.requests().next().unwrap();
    for (now, &block) in blocks.iter().enumerate() {
        let (next_use, past_uses) = (asked.next_uses[now], asked.past_uses[now]);
        if let Some(known) = cached.iter_mut().find(|known| known.block == block) {
            *known =
                Known { used: now, uses: known.uses + 1, rank: age + known.uses + 1, next_use, past_uses, ..*known };
            hits += 1;
            continue;
        }
        if cached.len() == capacity {
            let victim = (0..capacity).min_by_key(|&index| least(&cached[index])).unwrap();
            let gone = cached.remove(victim);
            age = if ages { gone.rank } else { 0 };
        }
        cached.push(Known { block, entered: now, used: now, uses: 1, rank: age + 1, next_use, past_uses });
    }
    hits
}

/// The hits of CLOCK (`in_place`: of SIEVE, whose hand moves instead of its blocks), on a list, oldest first.
fn by_hand(blocks: &[u32], capacity: usize, in_place: bool) -> u64 {
    let (mut list, mut hand, mut hits): (Vec<(u32, bool)>, usize, u64) = (Vec::new(), 0, 0);
    for &block in blocks {
        if let Some(entry) = list.iter_mut().find(|entry| entry.0 == block) {
            entry.1 = true;
            hits += 1;
            continue;
        }
        while list.len() == capacity {
            hand = if in_place && hand < list.len() { hand } else { 0 };
            let (old, marked) = list[hand];
            if !marked {
                list.remove(hand);
                // Past the newest it begins with the oldest, whatever is new by then.
                hand = if hand < list.len() { hand } else { 0 };
            } else if in_place {
                list[hand].1 = false;
                hand += 1;
            } else {
                list.remove(0);
                list.push((old, false));
            }
        }
        list.push((block, false));
    }
    hits
}

/// The hits of segmented LRU: two lists, least recent first.
fn by_segments(blocks: &[u32], capacity: usize) -> u64 {
    let most = (capacity as f64 * 0.8) as usize;
    let (mut probation, mut protected, mut hits): (Vec<u32>, Vec<u32>, u64) = (Vec::new(), Vec::new(), 0);
    for &block in blocks {
        let is_hit = probation.contains(&block) || protected.contains(&block);
        hits += u64::from(is_hit);
        if is_hit {
            probation.retain(|&other| other != block);
            protected.retain(|&other| other != block);
            protected.push(block);
            if protected.len() > most {
                probation.push(protected.remove(0));
            }
            continue;
        }
        if probation.len() + protected.len() == capacity {
            if probation.is_empty() {
                protected.remove(0)
            } else {
                probation.remove(0)
            };
        }
        probation.push(block);
    }
    hits
}

/// The hits of ARC, by the lists of its source, with the victim chosen before what comes is looked at.
fn by_adaptation(blocks: &[u32], capacity: usize) -> u64 {
    let [mut once, mut again, mut once_ghosts, mut again_ghosts] = [const { Vec::<u32>::new() }; 4];
    let (mut target, mut hits) = (0, 0);
    for &block in blocks {
        if once.contains(&block) || again.contains(&block) {
            once.retain(|&other| other != block);
            again.retain(|&other| other != block);
            again.push(block);
            hits += 1;
            continue;
        }
        if once.len() + again.len() == capacity {
            if once.len() > target && !once.is_empty() || again.is_empty() {
                once_ghosts.push(once.remove(0));
            } else {
                again_ghosts.push(again.remove(0));
            }
        }
        let lengths = (once_ghosts.len(), again_ghosts.len());
        if once_ghosts.contains(&block) {
            target = capacity.min(target + (lengths.1 / lengths.0).max(1));
            once_ghosts.retain(|&other| other != block);
            again.push(block);
        } else if again_ghosts.contains(&block) {
            target = target.saturating_sub((lengths.0 / lengths.1).max(1));
            again_ghosts.retain(|&other| other != block);
            again.push(block);
        } else {
            once.push(block);
        }
        while once.len() + once_ghosts.len() > capacity && !once_ghosts.is_empty() {
            once_ghosts.remove(0);
        }
        while once.len() + again.len() + once_ghosts.len() + again_ghosts.len() > 2 * capacity
            && !again_ghosts.is_empty()
        {
            again_ghosts.remove(0);
        }
    }
    hits
}

/// The hits of S3-FIFO: entries are blocks and their uses after the first.
fn by_three_queues(blocks: &[u32], capacity: usize) -> u64 {
    let most = (capacity as f64 * 0.1) as usize;
    let [mut small, mut main] = [const { Vec::<(u32, u8)>::new() }; 2];
    let mut ghosts: Vec<u32> = Vec::new();
    let mut hits = 0;
    for &block in blocks {
        if let Some(entry) = small.iter_mut().chain(&mut main).find(|entry| entry.0 == block) {
            entry.1 = (entry.1 + 1).min(3);
            hits += 1;
            continue;
        }
        while small.len() + main.len() == capacity {
            if small.len() > most || main.is_empty() {
                let (old, uses) = small.remove(0);
                if uses >= 2 {
                    main.push((old, 0));
                } else {
                    ghosts.push(old);
                    if ghosts.len() > capacity - most {
                        ghosts.remove(0);
                    }
                }
            } else {
                let (old, uses) = main.remove(0);
                if uses > 0 {
                    main.push((old, uses - 1));
                }
            }
        }
        if ghosts.contains(&block) {
            ghosts.retain(|&other| other != block);
            main.push((block, 0));
        } else {
            small.push((block, 0));
        }
    }
    hits
}

/// Every policy's definition.
fn definitions(blocks: &[u32], capacity: usize) -> BTreeMap<&'static str, u64> {
    let lru = by_least(blocks, capacity, false, |known| known.used);
    // Objects are paths of one block: none of a history is spare, and all cost the same.
    let lfu_da = by_least(blocks, capacity, true, |known| (known.rank, known.used));
    BTreeMap::from([
        ("lru", lru),
        ("radix", lru),
        // Nobody chooses a class.
        ("classes", lru),
        ("t-lru", lru),
        ("fifo", by_least(blocks, capacity, false, |known| known.entered)),
        ("lfu", by_least(blocks, capacity, false, |known| (known.uses, known.used))),
        ("lfu-da", lfu_da),
        ("gdsf", lfu_da),
        ("perfect-lfu", by_least(blocks, capacity, false, |known| (known.past_uses, known.used))),
        ("perfect-slru", by_least(blocks, capacity, false, |known| (known.past_uses > 0, known.used))),
        ("belady", by_least(blocks, capacity, false, |known| (BlockView::NEVER - known.next_use, known.used))),
        ("clock", by_hand(blocks, capacity, false)),
        ("sieve", by_hand(blocks, capacity, true)),
        ("slru", by_segments(blocks, capacity)),
        ("arc", by_adaptation(blocks, capacity)),
        ("s3-fifo", by_three_queues(blocks, capacity)),
    ])
}

/// All but W-TinyLFU, whose sketch is its definition.
fn defined() -> impl Iterator<Item = &'static str> {
    CachePolicy::all().map(CachePolicy::name).filter(|&name| name != "w-tinylfu")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_policy_is_its_definition(blocks in vec(0..30_u32, 1..300), capacity in 1..20_u32) {
        let (references, definitions) = (objects(&blocks), definitions(&blocks, capacity as usize));
        for policy in defined() {
            let found = hits(&references, policy, capacity, HitRule::Objects);
            prop_assert_eq!(found, definitions[policy], "{}", policy);
        }
    }

    /// Nobody finds more than who knows the future, of objects and of prefixes; what a cache of everything finds is ideal.
    #[test]
    fn nothing_beats_the_oracle(paths in vec((0..8_u32, 1..8_u32), 1..60), capacity in 1..24_u32) {
        let references = References::of(&branching(&paths), 1, false).unwrap();
        for rule in [HitRule::Objects, HitRule::Prefixes] {
            let bound = hits(&references, "belady", capacity, rule);
            for policy in CachePolicy::all() {
                let found = hits(&references, policy.name(), capacity, rule);
                prop_assert!(found <= bound, "{}: {} of {:?}, Belady {}", policy, found, rule, bound);
                let whole = hits(&references, policy.name(), references.distinct(), rule);
                prop_assert_eq!(whole, (references.len() as u64) - u64::from(references.distinct()), "{}", policy);
            }
        }
    }

    /// Prefixes of LRU: a list of blocks, into which a request's go from the last to the first.
    #[test]
    fn prefixes_hit_up_to_the_first_that_is_missing(paths in vec((0..8_u32, 1..8_u32), 1..60), capacity in 8..24_usize) {
        let references = References::of(&branching(&paths), 1, false).unwrap();
        let (mut list, mut expected): (Vec<u32>, usize) = (Vec::new(), 0);
        for asked in references.requests() {
            expected += asked.blocks.iter().take_while(|block| list.contains(block)).count();
            list.retain(|block| !asked.blocks.contains(block));
            list.extend(asked.blocks.iter().rev());
            list.drain(..list.len().saturating_sub(capacity));
        }
        prop_assert_eq!(hits(&references, "lru", capacity as u32, HitRule::Prefixes), expected as u64);
    }
}

/// Requests of one-token blocks: number `n` of a list of texts, of which two and two share their first three blocks, up to a depth.
fn branching(paths: &[(u32, u32)]) -> Workload {
    let request = |(&(text, depth), arrival): (&(u32, u32), u64)| {
        let block = |place: u32| u64::from(if place < 3 { text / 2 } else { 100 + text }) * 1000 + u64::from(place);
        let mut request = Request::new(Micros(arrival), depth, 1);
        request.hash_ids = (0..depth).map(block).collect();
        request.hash_block_tokens = 1;
        request
    };
    Workload::new("paths", paths.iter().zip(0..).map(request).collect(), Micros::ZERO).unwrap()
}

#[test]
fn on_a_law_of_zipf_every_policy_is_its_definition() {
    let blocks = zipf(7, 2_000, 1.0, 30_000);
    let (references, definitions) = (References::of_objects(blocks.clone(), 2_000).unwrap(), definitions(&blocks, 100));
    for policy in defined() {
        assert_eq!(hits(&references, policy, 100, HitRule::Objects), definitions[policy], "{policy}");
    }
    // Admission pays where what is asked for once is most of it.
    let [tiny, lru, best] =
        ["w-tinylfu", "lru", "belady"].map(|policy| hits(&references, policy, 100, HitRule::Objects));
    assert!(lru + 1500 < tiny && tiny < best, "{lru} {tiny} {best}");
}

#[test]
fn what_is_uncached_is_counted_in_tokens() {
    let mut requests = vec![Request::new(Micros(0), 10, 1), Request::new(Micros(1), 11, 1)];
    for request in &mut requests {
        request.session = Some("one".into());
    }
    let references = References::of(&Workload::new("two", requests, Micros::ZERO).unwrap(), 4, false).unwrap();
    assert_eq!((references.len(), references.distinct(), references.prompt_tokens()), (4, 2, 21));
    let lru = CachePolicy::Pool(Eviction::Lru);
    let found = replay(&references, lru, 9, HitRule::Prefixes, 9, &NEVER).unwrap();
    assert_eq!(found, Replayed { hits: 2, uncached_tokens: 10 + 3, late_requests: 1 });
    assert_eq!(replay(&references, lru, 9, HitRule::Prefixes, 9, &AtomicBool::new(true)), None);
}
