//! Where blocks can be: the tiers of a node's memory, the routes between them and the links that those go over.
//!
//! What a tier has is kept in a [`Tiers`], one value for each, and so are [`Routes`] and [`Links`]: whoever adds a tier,
//! a route or a link adds it here, and the compiler names every place that has to act on it. What a thing is called
//! outside stays what it was: `num_cpu_blocks` and `swap` are vLLM's words, and its *swapped* queue is a queue, no tier.
//!
//! | | where |
//! |---|---|
//! | capacity of a tier, in blocks | [`EngineConfig::num_blocks`](crate::deploy::EngineConfig::num_blocks) |
//! | what moves in a step | [`StepPlan::copies`](crate::sched::StepPlan::copies), [`StepPlan::moved`](crate::sched::StepPlan::moved) |
//! | bandwidth of a link and its price by the block | [`CostModel`](crate::cost::CostModel) |
//! | what a preemption believes a move costs | [`Pricing`](kvtide_rules::Pricing) |
//! | whether the host tier is a cache | [`HostCache`], [`HostPool`](crate::kv::HostPool) |
//! | who copies | [`MemoryBackend`](crate::memory::MemoryBackend) |

mod host_cache;

use std::fmt;
use std::ops::{Index, IndexMut};

pub use host_cache::{HostCache, HostCacheScope};

/// A pool that blocks can be in, nearest to the accelerator first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The accelerator's memory, where blocks are computed and read.
    Gpu,
    /// The host's memory, behind `PCIe`.
    Host,
}

/// A way from one tier to another, which blocks are copied along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// Out: a victim's blocks are kept on the host.
    GpuToHost,
    /// Back in.
    HostToGpu,
}

/// What copies go over. Routes that share one share its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Between accelerator and host, in either direction.
    Pcie,
}

impl Tier {
    /// Every tier.
    pub const ALL: [Tier; 2] = [Tier::Gpu, Tier::Host];
}

impl Route {
    /// Every route, in the order in which a step's copies are carried out: what leaves makes room for what comes.
    pub const ALL: [Route; 2] = [Route::GpuToHost, Route::HostToGpu];

    /// Where blocks come from.
    pub fn from(self) -> Tier {
        match self {
            Route::GpuToHost => Tier::Gpu,
            Route::HostToGpu => Tier::Host,
        }
    }

    /// Where they go.
    pub fn to(self) -> Tier {
        match self {
            Route::GpuToHost => Tier::Host,
            Route::HostToGpu => Tier::Gpu,
        }
    }

    /// What they go over.
    pub fn link(self) -> Link {
        match self {
            Route::GpuToHost | Route::HostToGpu => Link::Pcie,
        }
    }
}

impl Link {
    /// Every link.
    pub const ALL: [Link; 1] = [Link::Pcie];
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Gpu => "GPU",
            Tier::Host => "host",
        })
    }
}

/// An array with a place for each value of an enum.
macro_rules! one_for_each {
    ($(#[$doc:meta])* $array:ident of $key:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $array<T>([T; $key::ALL.len()]);

        impl<T> $array<T> {
            /// What `value` says of each.
            pub fn from_fn(value: impl FnMut($key) -> T) -> $array<T> {
                $array($key::ALL.map(value))
            }

            /// The values in the order of `ALL`.
            pub fn iter(&self) -> std::slice::Iter<'_, T> {
                self.0.iter()
            }

            /// The same, to be changed.
            pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
                self.0.iter_mut()
            }
        }

        impl<'a, T> IntoIterator for &'a $array<T> {
            type Item = &'a T;
            type IntoIter = std::slice::Iter<'a, T>;

            fn into_iter(self) -> std::slice::Iter<'a, T> {
                self.iter()
            }
        }

        impl<'a, T> IntoIterator for &'a mut $array<T> {
            type Item = &'a mut T;
            type IntoIter = std::slice::IterMut<'a, T>;

            fn into_iter(self) -> std::slice::IterMut<'a, T> {
                self.iter_mut()
            }
        }

        impl<T> Index<$key> for $array<T> {
            type Output = T;

            #[inline]
            fn index(&self, key: $key) -> &T {
                &self.0[key as usize]
            }
        }

        impl<T> IndexMut<$key> for $array<T> {
            #[inline]
            fn index_mut(&mut self, key: $key) -> &mut T {
                &mut self.0[key as usize]
            }
        }
    };
}

one_for_each! {
    /// A value for each tier.
    Tiers of Tier
}
one_for_each! {
    /// A value for each route.
    Routes of Route
}
one_for_each! {
    /// A value for each link.
    Links of Link
}

impl<T> Tiers<T> {
    /// What is at both ends of `route`: where blocks come from, and where they go.
    pub fn ends(&mut self, route: Route) -> (&T, &mut T) {
        let ends = self.0.get_disjoint_mut([route.from() as usize, route.to() as usize]);
        let [from, to] = ends.expect("a route joins two tiers");
        (from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_place() {
        assert!(Tier::ALL.iter().enumerate().all(|(place, &tier)| tier as usize == place));
        assert!(Route::ALL.iter().enumerate().all(|(place, &route)| route as usize == place));
        assert!(Link::ALL.iter().enumerate().all(|(place, &link)| link as usize == place));
        assert_eq!(Tiers::from_fn(|tier| tier.to_string()).iter().collect::<Vec<_>>(), ["GPU", "host"]);
    }

    #[test]
    fn whatever_leaves_the_gpu_can_come_back_over_the_same_link() {
        for route in Route::ALL {
            let back = Route::ALL.into_iter().find(|back| (back.from(), back.to()) == (route.to(), route.from()));
            assert_eq!(back.map(Route::link), Some(route.link()));
            let mut tiers = Tiers::from_fn(|tier| tier);
            let (from, to) = tiers.ends(route);
            assert_eq!((*from, *to), (route.from(), route.to()));
        }
    }
}
