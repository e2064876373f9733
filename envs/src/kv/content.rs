//! What tokens are, so that equal prefixes have equal keys.

use std::sync::Arc;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use crate::seed::{self, mix};
use crate::trace::Request;

/// Whether tenants may hit each other's prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// They may not. A hit answers faster, so sharing would tell one tenant what another has sent.
    #[default]
    Tenant,
    /// Equal prefixes are shared by all, as an engine does that is told of no tenants.
    Global,
}

/// A stretch of a prompt out of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where the tokens come from.
    pub stream: u64,
    /// First position that is not from here any more; the segment starts where the one before it ends, the first at 0.
    pub end: u32,
}

/// What every token of a request is, generated ones included. Cheap to clone.
///
/// No trace holds its tokens, and no simulation needs them: it needs to know which are the same. So a token is a pair
/// (stream, position): two requests have the same token at a position where they take it from the same stream. A system
/// prompt is a stream that many requests start with; what a request generates is a stream of its own, which the next
/// turn of its conversation may quote.
///
/// The **key** of a full block binds its tokens, all tokens before it and the scope, chained from block to block as in
/// vLLM. Two blocks of one size have equal keys if and only if all of that is equal, but for collisions of 64 bits: a
/// lookup among `c` cached keys finds a false one with probability `c / 2^64`, so a run of 10⁸ lookups in a cache of
/// 10⁵ blocks errs with a probability of one in two million.
#[derive(Debug, Clone)]
pub struct Content {
    scope: u64,
    /// Stream of everything behind the last segment.
    own: u64,
    segments: Arc<[Segment]>,
    /// No other request has tokens of `own`.
    is_own_unshared: bool,
    /// So many leading segments may have tokens that other requests have as well.
    shared_segments: u32,
}

impl Content {
    /// Tokens out of `segments`, then out of `own` without end. Requests of different `scope` share nothing.
    ///
    /// # Panics
    /// If a segment is empty: its end is not above that of the one before it, or 0.
    pub fn new(scope: u64, own: u64, segments: Arc<[Segment]>) -> Content {
        let mut start = 0;
        for segment in &*segments {
            assert!(
                segment.end > start,
                "segments must rise: one ends at {}, the one before it at {start}",
                segment.end
            );
            start = segment.end;
        }
        let shared_segments = segments.len() as u32;
        Content { scope, own, segments, is_own_unshared: false, shared_segments }
    }

    /// What is known of the tokens of a trace's row; `index` tells the trace's rows apart.
    ///
    /// - **Hash ids**: each is a stream of `hash_block_tokens` tokens. An id binds everything before it, so equal ids
    ///   at unequal places do not occur. The rest of the prompt and the answer are the request's own: an answer that
    ///   the next turn quotes is not recognised there, which understates hits by one answer a turn.
    /// - **Only a session**: all its requests are one growing text, of which each prompt is as much as it is long. This
    ///   assumes that a turn's prompt quotes everything before it, prompts and answers, word for word. It overstates
    ///   hits where a session forks, forgets or rewrites.
    /// - **Neither**: the request shares nothing with any other. It still finds its own blocks after a preemption.
    ///
    /// The scope binds `cache_salt` (vLLM's name), which always separates, and the tenant unless tenants share. A
    /// session belongs to its tenant either way.
    pub fn of(request: &Request, index: u64, sharing: Sharing) -> Content {
        let tenant = request.tenant.as_deref().map(|tenant| seed::derive(0, tenant, 0));
        let mut scope = 0;
        if let (Some(tenant), Sharing::Tenant) = (tenant, sharing) {
            scope = seed::derive(tenant, "tenant", 0);
        }
        if let Some(salt) = &request.cache_salt {
            scope = seed::derive(seed::derive(scope, salt, 0), "salt", 0);
        }
        let own = match &request.session {
            Some(session) if request.hash_ids.is_empty() => {
                let owner = tenant.map_or(0, |tenant| seed::derive(tenant, "owner", 0));
                seed::derive(seed::derive(owner, session, 0), "session", 0)
            }
            _ => seed::derive(index, "request", 0),
        };
        let block_tokens = request.hash_block_tokens;
        let namespace = seed::derive(u64::from(block_tokens), "hash_ids", 0);
        let segments = (1..).zip(&request.hash_ids).map(|(number, &hash_id)| {
            let end = number * block_tokens;
            Segment { stream: absorb(namespace, hash_id), end }
        });
        let mut content = Content::new(scope, own, segments.collect());
        // Nothing else in the trace refers to a request's own stream; a session's stream is its other requests' too.
        content.is_own_unshared = request.session.is_none() || !request.hash_ids.is_empty();
        content
    }

    /// The first block that holds a token nobody else has or will have; every block behind it does as well. `u32::MAX`
    /// if others may have them all.
    pub fn unshared_from(&self, block_size: u32) -> u32 {
        if !self.is_own_unshared {
            return u32::MAX;
        }
        match (self.shared_segments as usize).checked_sub(1).and_then(|last| self.segments.get(last)) {
            Some(last) => last.end / block_size,
            None => 0,
        }
    }

    /// The same content, of which only the first so many segments are in other requests as well; see
    /// [`shared_prefixes`].
    #[must_use]
    pub fn shared_up_to(mut self, segments: u32) -> Content {
        self.shared_segments = self.shared_segments.min(segments);
        self
    }

    /// The key before the first block: it binds the scope.
    pub fn root(&self) -> u64 {
        absorb(0x6b76_7469_6465_2032, self.scope)
    }

    /// Key of full block number `block`; `parent` is the key of the block before it, or [`root`](Content::root).
    pub fn key(&self, parent: u64, block: u32, block_size: u32) -> u64 {
        let mut key = parent;
        self.walk(block * block_size, (block + 1) * block_size, block_size, &mut key, |_| {});
        key
    }

    /// Appends the keys of the full blocks from number `keys.len()` up to, not including, number `blocks`.
    pub fn extend_keys(&self, keys: &mut Vec<u64>, blocks: u32, block_size: u32) {
        let known = keys.len() as u32;
        if known >= blocks {
            return;
        }
        let mut key = keys.last().copied().unwrap_or_else(|| self.root());
        keys.reserve((blocks - known) as usize);
        self.walk(known * block_size, blocks * block_size, block_size, &mut key, |key| keys.push(key));
    }

    /// Absorbs the tokens `start..end` into `key`, both whole numbers of blocks, and reports it after each block.
    ///
    /// Absorbed are runs, (stream, number of tokens), cut at blocks and nowhere else. The numbers add up to positions,
    /// so that a list of runs means one text, and a text has one list of runs.
    fn walk(&self, start: u32, end: u32, block_size: u32, key: &mut u64, mut full: impl FnMut(u64)) {
        let mut segment = self.segments.partition_point(|segment| segment.end <= start);
        let mut at = start;
        while at < end {
            let stream = self.stream(segment);
            let mut run_end = self.end(segment).min(end);
            segment += 1;
            while run_end < end && self.stream(segment) == stream {
                run_end = self.end(segment).min(end);
                segment += 1;
            }
            let mixed = mix(stream);
            let word = |tokens: u32| mixed.wrapping_add(u64::from(tokens).wrapping_mul(0xd6e8_feb8_6659_fd93));
            // The rest of a block that an earlier run began.
            let within = at % block_size;
            if within > 0 {
                let tokens = (block_size - within).min(run_end - at);
                *key = absorb(*key, word(tokens));
                at += tokens;
                if at.is_multiple_of(block_size) {
                    full(*key);
                }
            }
            let whole = word(block_size);
            for _ in 0..(run_end - at) / block_size {
                *key = absorb(*key, whole);
                full(*key);
            }
            let tokens = (run_end - at) % block_size;
            if tokens > 0 {
                *key = absorb(*key, word(tokens));
            }
            at = run_end;
        }
    }

    /// The stream that the token at `position` is from, and the first position behind it that may be from another.
    pub fn stream_at(&self, position: u32) -> (u64, u32) {
        let segment = self.segments.partition_point(|segment| segment.end <= position);
        (self.stream(segment), self.end(segment))
    }

    fn stream(&self, segment: usize) -> u64 {
        self.segments.get(segment).map_or(self.own, |segment| segment.stream)
    }

    fn end(&self, segment: usize) -> u32 {
        self.segments.get(segment).map_or(u32::MAX, |segment| segment.end)
    }
}

/// For each request, up to which of its hash ids another request of the list has the same; 0 where it shares none. Ids
/// behind that can never be hit by anybody else.
pub fn shared_prefixes(requests: &[Request]) -> Vec<u32> {
    let ids = || requests.iter().flat_map(|request| &request.hash_ids).copied();
    let (count, most) = ids().fold((0, 0), |(count, most), id| (count + 1, id.max(most)));
    let mut owners = Owners::new(count, most);
    for (index, request) in (0..).zip(requests) {
        for &hash_id in &request.hash_ids {
            let owner = owners.of(hash_id);
            *owner = if *owner == NOBODY || *owner == index { index } else { SHARED };
        }
    }
    let mut last_shared =
        |request: &Request| request.hash_ids.iter().rposition(|&hash_id| *owners.of(hash_id) == SHARED);
    requests.iter().map(&mut last_shared).map(|last| last.map_or(0, |last| last as u32 + 1)).collect()
}

/// In [`Owners`]: nobody, and several.
const NOBODY: u32 = u32::MAX;
const SHARED: u32 = u32::MAX - 1;

/// Of each hash id, which request has it, if one alone does.
enum Owners {
    /// By id, where a trace counts them up.
    Counted(Vec<u32>),
    Hashed(HashTable<(u64, u32)>),
}

impl Owners {
    /// For so many ids, repetitions included, none above `most`.
    fn new(count: usize, most: u64) -> Owners {
        match usize::try_from(most) {
            Ok(most) if most < 2 * count => Owners::Counted(vec![NOBODY; most + 1]),
            _ => Owners::Hashed(HashTable::with_capacity(count)),
        }
    }

    fn of(&mut self, hash_id: u64) -> &mut u32 {
        match self {
            Owners::Counted(owners) => &mut owners[hash_id as usize],
            Owners::Hashed(owners) => {
                let entry = owners.entry(mix(hash_id), |owner| owner.0 == hash_id, |owner| mix(owner.0));
                &mut entry.or_insert((hash_id, NOBODY)).into_mut().1
            }
        }
    }
}

/// Binds `word` to everything in `key`.
fn absorb(key: u64, word: u64) -> u64 {
    mix(key.rotate_left(23) ^ word)
}
