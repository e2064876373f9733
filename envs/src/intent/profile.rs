//! Streams of our own: requests that decode in turns under one of five profiles, drawn from a seed.
//!
//! Every request allocates its blocks; then requests take turns. In a turn a request reads the blocks at its end (its hot span),
//! lets one old block go cold, and now and then announces an old block, which it may read in its next turn: so that a policy gains by
//! what is declared, not only by keeping ends. A profile says how many requests are long, important or drafting, how many turns are
//! pressed for time, and how far away reuse is. The shares are those of the generator that the faithful mode's streams come from; the
//! rest is our own.

use std::fmt;
use std::str::FromStr;

use kvtide_rules::intent::{MemoryIntent, Phase, Priority, Tier};
use rand::RngExt as _;

use super::draft::DraftEvent;
use super::event::EventKind;
use super::names::hashed;
use crate::seed::{self, Stream};

/// What requests are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileName {
    /// A bit of everything.
    Balanced,
    /// Many important requests, and most turns pressed for time.
    DeadlinePressure,
    /// Long contexts that are read again late, few of them important.
    RagMixedPriority,
    /// Nearly half of the requests draft.
    SpeculativeDecode,
    /// Three quarters of the requests are long, and reuse is far away.
    LongContextExtreme,
}

/// The shares of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Shares {
    long: f64,
    draft: f64,
    important: f64,
    /// Of turns that are pressed for time.
    pressed: f64,
    reuse_scale: f64,
}

impl ProfileName {
    /// Every profile.
    pub const ALL: [ProfileName; 5] = [
        ProfileName::Balanced,
        ProfileName::DeadlinePressure,
        ProfileName::RagMixedPriority,
        ProfileName::SpeculativeDecode,
        ProfileName::LongContextExtreme,
    ];

    /// As in options.
    pub fn name(self) -> &'static str {
        match self {
            ProfileName::Balanced => "balanced",
            ProfileName::DeadlinePressure => "deadline_pressure",
            ProfileName::RagMixedPriority => "rag_mixed_priority",
            ProfileName::SpeculativeDecode => "speculative_decode",
            ProfileName::LongContextExtreme => "long_context_extreme",
        }
    }

    fn shares(self) -> Shares {
        let shares =
            |long, draft, important, pressed, reuse_scale| Shares { long, draft, important, pressed, reuse_scale };
        match self {
            ProfileName::Balanced => shares(0.3, 0.2, 0.2, 0.25, 1.0),
            ProfileName::DeadlinePressure => shares(0.4, 0.2, 0.45, 0.65, 0.7),
            ProfileName::RagMixedPriority => shares(0.5, 0.2, 0.15, 0.2, 1.6),
            ProfileName::SpeculativeDecode => shares(0.3, 0.45, 0.2, 0.3, 0.9),
            ProfileName::LongContextExtreme => shares(0.75, 0.2, 0.1, 0.15, 2.8),
        }
    }
}

/// A stream to be made, as `deadline_pressure:requests=24,blocks=12,block_kib=16,turns=180,seed=42`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileSpec {
    /// The profile.
    pub profile: ProfileName,
    /// Requests.
    pub requests: u32,
    /// Blocks of a short one; a long one has twice as many.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Turns in all.
    pub turns: u64,
    /// Seed of all draws.
    pub seed: u64,
}

/// Why there is no such stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("profile {text:?}: {reason}")]
pub struct ProfileError {
    text: String,
    reason: String,
}

impl fmt::Display for ProfileSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProfileSpec { profile, requests, blocks, block_bytes, turns, seed } = self;
        let (name, kib) = (profile.name(), block_bytes >> 10);
        write!(f, "{name}:requests={requests},blocks={blocks},block_kib={kib},turns={turns},seed={seed}")
    }
}

impl FromStr for ProfileSpec {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<ProfileSpec, ProfileError> {
        let wrong = |reason: String| ProfileError { text: text.to_owned(), reason };
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let profile = ProfileName::ALL.into_iter().find(|profile| profile.name() == name);
        let known = ProfileName::ALL.map(ProfileName::name).join(", ");
        let profile = profile.ok_or_else(|| wrong(format!("expected one of {known}")))?;
        let mut spec = ProfileSpec { profile, requests: 24, blocks: 12, block_bytes: 16 << 10, turns: 180, seed: 42 };
        let mut given: Vec<&str> = Vec::new();
        for setting in settings.split(',').filter(|setting| !setting.is_empty()) {
            let pair = setting.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
            let (key, value) = pair.ok_or_else(|| wrong(format!("`{setting}` is not key=value")))?;
            if given.contains(&key) {
                return Err(wrong(format!("{key} is given twice")));
            }
            given.push(key);
            let number = |most: u64| {
                let number = value.parse::<u64>().ok().filter(|number| (1..=most).contains(number));
                number.ok_or_else(|| wrong(format!("{key} `{value}` is not a whole number from 1 to {most}")))
            };
            match key {
                "requests" => spec.requests = number(1_000_000)? as u32,
                "blocks" => spec.blocks = number(65_536)? as u32,
                "block_kib" => spec.block_bytes = number(1 << 20)? << 10,
                "turns" => spec.turns = number(1_000_000_000)?,
                "seed" => {
                    let seed = value.parse().map_err(|_| wrong(format!("seed `{value}` is not a whole number")))?;
                    spec.seed = seed;
                }
                _ => return Err(wrong(format!("unknown {key}: expected requests, blocks, block_kib, turns, seed"))),
            }
        }
        Ok(spec)
    }
}

/// A request of a profile.
#[derive(Debug, Clone)]
struct Client {
    name: String,
    blocks: u32,
    priority: u32,
    is_important: bool,
    drafts: bool,
    /// Step of the first of its blocks.
    arrival: u64,
    turns: u64,
    /// The old block that goes cold next.
    cold: u32,
    /// An old block that it will read.
    announced: Option<u32>,
}

impl ProfileSpec {
    /// Blocks of all requests.
    pub fn block_count(&self) -> u64 {
        let long = ((f64::from(self.requests) * self.profile.shares().long) as u64).max(1);
        (u64::from(self.requests) + long) * u64::from(self.blocks)
    }

    /// The events, made as they are asked for.
    pub fn events(self) -> impl Iterator<Item = DraftEvent> + Send + 'static {
        let mut made = Made::new(self);
        let mut next = 0_u64;
        let requests = u64::from(self.requests);
        std::iter::from_fn(move || {
            let events = if next < requests {
                made.arrive(next as usize)
            } else if next - requests < self.turns {
                made.turn(((next - requests) % requests) as usize)
            } else {
                return None;
            };
            next += 1;
            Some(events)
        })
        .flatten()
    }
}

/// A stream under way.
struct Made {
    spec: ProfileSpec,
    shares: Shares,
    draws: Stream,
    clients: Vec<Client>,
    step: u64,
}

impl Made {
    fn new(spec: ProfileSpec) -> Made {
        let shares = spec.profile.shares();
        let mut draws = seed::stream(spec.seed, "intent-profile", spec.profile as u64);
        let of = |share: f64| ((f64::from(spec.requests) * share) as u32).max(1);
        let (long, important, drafting) = (of(shares.long), of(shares.important), of(shares.draft));
        let client = |index: u32| {
            let is_important = index < important;
            Client {
                name: format!("req-{index:03}"),
                blocks: if index < long { 2 * spec.blocks } else { spec.blocks },
                priority: if is_important { draws.random_range(85..=95) } else { draws.random_range(10..=60) },
                is_important,
                // The last ones, so that not all that is important drafts.
                drafts: index + drafting >= spec.requests,
                arrival: 0,
                turns: 0,
                cold: 0,
                announced: None,
            }
        };
        let clients = (0..spec.requests).map(client).collect();
        Made { spec, shares, draws, clients, step: 0 }
    }

    /// Blocks at its end that a request reads in every turn.
    fn hot_span(&self, client: &Client) -> u32 {
        let wide = client.is_important || self.spec.profile == ProfileName::DeadlinePressure;
        client.blocks.min(if wide { 3 } else { 2 })
    }

    /// An event of the next step.
    fn event(
        &mut self,
        client: &Client,
        kind: EventKind,
        block: u32,
        reason: &'static str,
        intent: MemoryIntent,
    ) -> DraftEvent {
        let step = self.step;
        self.step += 1;
        let mut intent = intent;
        intent.settle_pin();
        DraftEvent {
            step,
            kind,
            object_id: format!("{}:block:{block}", client.name),
            request_id: client.name.clone(),
            block_id: block,
            arrival_step: client.arrival,
            created_step: client.arrival + u64::from(block),
            reason,
            intent,
        }
    }

    fn blank(&self, client: &Client) -> MemoryIntent {
        MemoryIntent {
            request_priority: client.priority,
            last_access_step: self.step,
            spill_cost_us: Some(200),
            ..MemoryIntent::new(hashed(&client.name), self.spec.block_bytes)
        }
    }

    /// Tokens within which reuse is expected, in this profile.
    fn window(&self, tokens: u32) -> u64 {
        ((f64::from(tokens) * self.shares.reuse_scale) as u64).max(1)
    }

    fn arrive(&mut self, index: usize) -> Vec<DraftEvent> {
        let mut client = self.clients[index].clone();
        client.arrival = self.step;
        let tail = client.blocks - self.hot_span(&client);
        let mut events = Vec::new();
        for block in 0..client.blocks {
            let is_tail = block >= tail;
            let intent = MemoryIntent {
                priority: if is_tail { Priority::Hot } else { Priority::Warm },
                deadline_us: Some(if is_tail { 2_500 } else { 10_000 }),
                slack_us: Some(if is_tail { 1_500 } else { 9_000 }),
                target_decode_step: Some(self.step + u64::from(client.blocks)),
                expected_reuse_window_tokens: Some(if is_tail { 2 } else { self.window(24 + block) }),
                recompute_cost_us: Some(if is_tail { 5_000 } else { 200 }),
                recency_score: if is_tail { 0.7 } else { 0.15 },
                recompute_ok: !is_tail,
                compression_ok: !is_tail,
                prefetch_ok: !is_tail,
                is_draft: is_tail && client.drafts,
                is_committed: !(is_tail && client.drafts),
                ..self.blank(&client)
            };
            events.push(self.event(&client, EventKind::Allocated, block, "prompt of a request", intent));
        }
        self.clients[index] = client;
        events
    }

    fn turn(&mut self, index: usize) -> Vec<DraftEvent> {
        let mut client = self.clients[index].clone();
        client.turns += 1;
        let tail = client.blocks - self.hot_span(&client);
        let is_pressed = client.is_important || self.draws.random_bool(self.shares.pressed);
        let mut events = Vec::new();
        let announced = client.announced.take().filter(|_| self.draws.random_bool(0.5));
        for (place, block) in announced.into_iter().chain(tail..client.blocks).enumerate() {
            let intent = self.read(&client, place as u64, is_pressed);
            events.push(self.event(&client, EventKind::MarkedDecodeCritical, block, "read by this turn", intent));
            events.push(self.event(&client, EventKind::Accessed, block, "turn of a request", intent));
        }
        if client.drafts && client.turns.is_multiple_of(4) {
            let intent = MemoryIntent { phase: Phase::Verify, ..self.blank(&client) };
            events.push(self.event(&client, EventKind::Committed, client.blocks - 1, "draft accepted", intent));
        }
        if tail > 0 {
            let block = client.cold;
            client.cold = (client.cold + 1) % tail;
            let intent = self.cold(&client);
            events.push(self.event(&client, EventKind::MarkedCold, block, "behind what is read", intent));
            if client.turns.is_multiple_of(5) {
                let intent = MemoryIntent {
                    priority: if client.is_important { Priority::Hot } else { Priority::Warm },
                    deadline_us: client.is_important.then_some(4_000),
                    slack_us: client.is_important.then_some(1_200),
                    expected_reuse_window_tokens: Some(4),
                    current_tier: Tier::Dram,
                    ..intent
                };
                events.push(self.event(&client, EventKind::Prefetched, block, "announced for the next turn", intent));
                client.announced = Some(block);
            }
        }
        self.clients[index] = client;
        events
    }

    fn read(&self, client: &Client, place: u64, is_pressed: bool) -> MemoryIntent {
        MemoryIntent {
            phase: Phase::Decode,
            priority: Priority::DecodeCritical,
            deadline_us: Some(if is_pressed { 700 } else { 2_500 }),
            slack_us: Some(if is_pressed { 250 } else { 1_500 }),
            target_decode_step: Some(self.step + place),
            expected_reuse_window_tokens: Some(1 + place),
            recompute_cost_us: Some(if is_pressed { 6_000 } else { 2_000 }),
            recency_score: (1.0 - 0.1 * place as f64).max(0.8),
            ..self.blank(client)
        }
    }

    fn cold(&self, client: &Client) -> MemoryIntent {
        MemoryIntent {
            phase: if client.turns.is_multiple_of(7) { Phase::Done } else { Phase::Verify },
            target_decode_step: Some(self.step + 512),
            expected_reuse_window_tokens: Some(self.window(48)),
            recompute_cost_us: Some(80),
            spill_cost_us: Some(100),
            request_priority: client.priority.saturating_sub(20),
            last_access_step: self.step.saturating_sub(20),
            recompute_ok: true,
            compression_ok: true,
            prefetch_ok: true,
            is_draft: false,
            ..self.blank(client)
        }
    }
}
