//! Which cached block goes first: one contract, [`Evict`], and a file for each policy.
//!
//! A prefix pool ([`PrefixPool`](crate::kv::PrefixPool)) keeps what blocks hold and who holds them; a policy keeps the
//! order in which those that nobody holds are evicted, and nothing else. The two meet in the four calls of [`Evict`], the
//! manner of foyer's eviction trait: neither the pool nor a scheduler knows which policy runs.
//!
//! **A new policy** is a file here, an entry in `policies!`, of which `--set`, [`Eviction`] and `EvictionPolicy` follow, and a line
//! in `policy!`, which the compiler asks for; its file tells the story of the kit (`kit.rs`). What it decides by comes in
//! [`BlockView`]: one that needs to know whose a block was, say, adds a field there and fills it in where the pool tells of
//! idle blocks, `Cache::seen`.

mod aged;
mod arc;
mod belady;
mod classes;
mod clock;
mod deadline_aware;
mod declared;
mod fifo;
mod gdsf;
mod ghosts;
mod intent_aware;
pub(crate) mod key_map;
mod lfu;
mod lfu_da;
mod lru;
mod order;
mod perfect_lfu;
mod perfect_slru;
mod places;
mod queues;
mod radix;
mod ranked;
mod s3fifo;
mod sieve;
mod sketch;
mod slru;
mod tail_lru;
mod tiny_lfu;

#[cfg(test)]
mod kit;

use std::fmt::Debug;

use kvtide_rules::intent::{Scoring, Standing};
use serde::{Deserialize, Serialize};

pub use arc::Arc;
pub use belady::Belady;
pub use classes::Classes;
pub use clock::Clock;
pub use deadline_aware::DeadlineAware;
pub use declared::{Declared, Scored};
pub use fifo::Fifo;
pub use gdsf::Gdsf;
pub use intent_aware::IntentAware;
pub use lfu::Lfu;
pub use lfu_da::LfuDa;
pub use lru::Lru;
pub use perfect_lfu::PerfectLfu;
pub use perfect_slru::PerfectSlru;
pub use radix::Radix;
pub use s3fifo::S3Fifo;
pub use sieve::Sieve;
pub use slru::Slru;
pub use tail_lru::TailLru;
pub use tiny_lfu::TinyLfu;

/// A block as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockView {
    /// Its number; never 0, vLLM's null block, which is nobody's.
    pub block: u32,
    /// Key of its content, by which a policy knows again what it has evicted; 0 for content that nobody else asks for. Told
    /// with [`idle`](Evict::idle) alone, as is all that follows.
    pub key: u64,
    /// Which of its path it is, from 0.
    pub position: u32,
    /// Blocks of the path that it is told with, itself included.
    pub length: u32,
    /// When it is asked for again, for an oracle; [`NEVER`](Self::NEVER) where nobody knows, and in every pool.
    pub next_use: u32,
    /// How often it was asked for so far, before and since its content was last evicted; 0 in every pool, where nobody knows.
    pub past_uses: u32,
}

impl BlockView {
    /// A moment that does not come.
    pub const NEVER: u32 = u32::MAX;

    /// A block of which the number is all that is told.
    #[inline]
    pub fn of(block: u32) -> BlockView {
        BlockView { block, key: 0, position: 0, length: 1, next_use: BlockView::NEVER, past_uses: 0 }
    }
}

/// An order of eviction of the **idle** blocks: cached, and held by no request.
///
/// The pool keeps these promises:
///
/// - a block is told [`idle`](Self::idle) when it becomes idle, and leaves by [`taken`](Self::taken) or
///   [`victim`](Self::victim), once; in between it may be [`accessed`](Self::accessed);
/// - where [`KEEPS_REPEATS`](Self::KEEPS_REPEATS), content goes by [`victim`](Self::victim) alone: a block that was taken
///   comes back with the content that it had, so that counts, marks and places may outlast its being held;
/// - of a path, blocks that continue one another, the last block is told first, whatever is told. What a request holds or
///   hits is a path from the beginning of its text, so that a policy that lets the earlier of two calls count as the older
///   use never evicts a prefix before what continues it. Whoever orders blocks otherwise has to see to that itself.
///
/// A policy allocates nothing after [`new`](Self::new), decides by what it was told and draws nothing at random, so that
/// equal calls give equal orders.
pub trait Evict: Debug + Clone {
    /// Whether a lookup that hits an idle block is a use of it, even if its request is then refused. If not,
    /// [`accessed`](Self::accessed) is never called, and the caller may leave a lookup out that would change nothing else.
    const LOOKUP_IS_USE: bool = false;

    /// Whether several idle blocks may have one key. If not, a block that would be idle while another block has its key
    /// loses its content instead, and so does an idle one whose key a held block is registered under.
    const KEEPS_REPEATS: bool = true;

    /// A policy for blocks of `block_tokens` tokens with numbers below `num_blocks`, of which none is idle.
    fn new(num_blocks: u32, block_tokens: u32) -> Self;

    /// A block that is held is registered, behind `parent` in its path. Of content that nobody else can ask for this is told only
    /// where classes are, or something is declared.
    #[inline]
    fn registered(&mut self, _block: u32, _parent: Option<u32>) {}

    /// A block becomes idle: its last holder gave it back, and its content stays cached.
    fn idle(&mut self, block: BlockView);

    /// Blocks of one path become idle, the last first.
    #[inline]
    fn idle_path(&mut self, path: impl Iterator<Item = BlockView>) {
        path.for_each(|block| self.idle(block));
    }

    /// A lookup hits an idle block, which stays idle; only where [`LOOKUP_IS_USE`](Self::LOOKUP_IS_USE).
    fn accessed(&mut self, _block: BlockView) {}

    /// A block is idle no more: it is in use again, or its content is gone. The order of the others stays.
    fn taken(&mut self, block: BlockView);

    /// An idle block is used, and idle again at once: [`taken`](Self::taken) and [`idle`](Self::idle), for whoever has a
    /// shorter way.
    #[inline]
    fn used(&mut self, block: BlockView) {
        self.taken(block);
        self.idle(block);
    }

    /// Takes the block that is evicted next out of the order; `None` if none is idle.
    fn victim(&mut self) -> Option<u32>;

    /// Takes the `count` blocks that are evicted next out of the order, or as many as there are, and gives them to `some`, one
    /// or more at a time.
    #[inline]
    fn victims(&mut self, count: u32, mut some: impl FnMut(&[u32])) {
        (0..count).map_while(|_| self.victim()).for_each(|block| some(&[block]));
    }

    /// Idle blocks, the next victim first: what [`victim`](Self::victim) would answer if it were called again and again.
    fn order(&self) -> impl Iterator<Item = u32>;

    /// Whether what it keeps of an idle block agrees with itself, for recounts.
    fn is_sound(&self, block: u32) -> bool;
}

/// What asking for every victim gives, where the order is not kept as one.
fn drained<E: Evict>(policy: &E) -> impl Iterator<Item = u32> + use<E> {
    let mut rest = policy.clone();
    std::iter::from_fn(move || rest.victim())
}

/// Makes of the list of policies their names, and a pool's choice among them.
macro_rules! policies {
    ($($(#[$meta:meta])* $policy:ident = $name:literal,)+) => {
        /// The name of a policy, as in `--set eviction=lru`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub enum Eviction {
            $($(#[$meta])* #[serde(rename = $name)] $policy,)+
        }

        impl Eviction {
            /// Every policy, in the order of its [`NAMES`](Self::NAMES).
            pub(crate) const ALL: &[Eviction] = &[$(Eviction::$policy,)+];

            /// Every policy's name.
            pub(crate) const NAMES: &[&str] = &[$($name,)+];

            /// Its name.
            pub fn name(self) -> &'static str {
                Eviction::NAMES[self as usize]
            }
        }

        /// Whichever policy a pool runs. Each operation of a pool asks once which one it is, and goes on in code made for it.
        #[derive(Debug, Clone)]
        pub(crate) enum EvictionPolicy {
            $($policy($policy),)+
        }

        impl EvictionPolicy {
            pub(crate) fn new(eviction: Eviction, num_blocks: u32, block_tokens: u32) -> EvictionPolicy {
                match eviction {
                    $(Eviction::$policy => EvictionPolicy::$policy($policy::new(num_blocks, block_tokens)),)+
                }
            }
        }
    };
}

policies! {
    /// vLLM's free queue; see [`Lru`].
    #[default]
    Lru = "lru",
    /// SGLang's radix tree; see [`Radix`].
    Radix = "radix",
    /// First in, first out; see [`Fifo`].
    Fifo = "fifo",
    /// Least frequently used; see [`Lfu`].
    Lfu = "lfu",
    /// The same with ageing; see [`LfuDa`].
    LfuDa = "lfu-da",
    /// Second chance; see [`Clock`].
    Clock = "clock",
    /// A hand and no queue to move in; see [`Sieve`].
    Sieve = "sieve",
    /// Three queues; see [`S3Fifo`].
    S3Fifo = "s3-fifo",
    /// Recency and frequency, by ghosts; see [`Arc`].
    Arc = "arc",
    /// Segmented LRU; see [`Slru`].
    Slru = "slru",
    /// `GreedyDual` by uses and by what computing again costs; see [`Gdsf`].
    Gdsf = "gdsf",
    /// LRU with admission; see [`TinyLfu`].
    TinyLfu = "w-tinylfu",
    /// Tail-optimised LRU; see [`TailLru`].
    TailLru = "t-lru",
    /// Classes that a retention policy chooses; see [`Classes`].
    Classes = "classes",
    /// What requests declare of their blocks, as one score; see [`IntentAware`].
    IntentAware = "intent-aware",
    /// The same and more weight on deadlines; see [`DeadlineAware`].
    DeadlineAware = "deadline-aware",
}

/// Evaluates `$body` with `$policy` as the policy that `$which` is.
macro_rules! policy {
    ($which:expr, $policy:ident => $body:expr) => {
        match $which {
            $crate::evict::EvictionPolicy::Lru($policy) => $body,
            $crate::evict::EvictionPolicy::Radix($policy) => $body,
            $crate::evict::EvictionPolicy::Fifo($policy) => $body,
            $crate::evict::EvictionPolicy::Lfu($policy) => $body,
            $crate::evict::EvictionPolicy::LfuDa($policy) => $body,
            $crate::evict::EvictionPolicy::Clock($policy) => $body,
            $crate::evict::EvictionPolicy::Sieve($policy) => $body,
            $crate::evict::EvictionPolicy::S3Fifo($policy) => $body,
            $crate::evict::EvictionPolicy::Arc($policy) => $body,
            $crate::evict::EvictionPolicy::Slru($policy) => $body,
            $crate::evict::EvictionPolicy::Gdsf($policy) => $body,
            $crate::evict::EvictionPolicy::TinyLfu($policy) => $body,
            $crate::evict::EvictionPolicy::TailLru($policy) => $body,
            $crate::evict::EvictionPolicy::Classes($policy) => $body,
            $crate::evict::EvictionPolicy::IntentAware($policy) => $body,
            $crate::evict::EvictionPolicy::DeadlineAware($policy) => $body,
        }
    };
}
pub(crate) use policy;

impl Eviction {
    /// By which score blocks go of which requests declare what they are for; `None` if nothing need be declared.
    pub fn scoring(self) -> Option<Scoring> {
        match self {
            Eviction::IntentAware => Some(Scoring::IntentAware),
            Eviction::DeadlineAware => Some(Scoring::DeadlineAware),
            _ => None,
        }
    }
}

impl EvictionPolicy {
    /// Tells of standings where the policy goes by them, from a table's last block to its first; see [`Declared::declare`].
    pub(crate) fn declare(&mut self, blocks: impl Iterator<Item = (u32, Standing)>) {
        match self {
            EvictionPolicy::IntentAware(policy) => policy.declare(blocks),
            EvictionPolicy::DeadlineAware(policy) => policy.declare(blocks),
            _ => {}
        }
    }

    /// Tells of content that nobody else can ask for, where that is to be known; see [`Evict::registered`].
    pub(crate) fn registered_keyless(&mut self, block: u32, parent: Option<u32>) {
        match self {
            EvictionPolicy::Classes(policy) => policy.registered(block, parent),
            EvictionPolicy::IntentAware(policy) => policy.registered(block, parent),
            EvictionPolicy::DeadlineAware(policy) => policy.registered(block, parent),
            _ => {}
        }
    }

    /// See [`Evict::LOOKUP_IS_USE`].
    pub(crate) fn lookup_is_use(&self) -> bool {
        fn of<E: Evict>(_: &E) -> bool {
            E::LOOKUP_IS_USE
        }
        policy!(self, policy => of(policy))
    }

    /// See [`Evict::KEEPS_REPEATS`].
    pub(crate) fn keeps_repeats(&self) -> bool {
        fn of<E: Evict>(_: &E) -> bool {
            E::KEEPS_REPEATS
        }
        policy!(self, policy => of(policy))
    }

    /// See [`Evict::order`].
    pub(crate) fn order(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        policy!(self, policy => Box::new(policy.order()))
    }

    /// See [`Evict::is_sound`].
    pub(crate) fn is_sound(&self, block: u32) -> bool {
        policy!(self, policy => policy.is_sound(block))
    }
}
