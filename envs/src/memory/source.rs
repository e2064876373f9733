//! Where a node's memory comes from.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Contents, Filled, HostMemory, KvShape, Memory, MemoryBackend, MemoryError, Work};
use crate::deploy::EngineConfig;
use crate::tier::{Tier, Tiers};
use crate::time::Micros;

/// What kind of memory, as in `--memory host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryKind {
    /// None: blocks are numbers, and steps take what the cost model says.
    #[default]
    Modelled,
    /// Ordinary memory, so many bytes a token; the clock is the cost model's.
    Host {
        /// Bytes of a token: a multiple of 32 from 32 to 1,048,576.
        token_bytes: u32,
    },
    /// A GPU: blocks in the model's shape, a decoder's arithmetic over them, and measured time.
    Cuda {
        /// Which GPU, from 0.
        ordinal: u32,
    },
}

/// Bytes of a token of host memory, if nobody says otherwise.
const TOKEN_BYTES: u32 = 64;

impl FromStr for MemoryKind {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<MemoryKind, MemoryError> {
        let wrong = || {
            MemoryError::Unsupported(format!(
                "memory {text:?}: expected modelled, host, host:BYTES (of a token: a multiple of 32 up to 1048576), cuda or \
                 cuda:DEVICE"
            ))
        };
        match text.split_once(':') {
            None if text == "modelled" => Ok(MemoryKind::Modelled),
            None if text == "host" => Ok(MemoryKind::Host { token_bytes: TOKEN_BYTES }),
            None if text == "cuda" => Ok(MemoryKind::Cuda { ordinal: 0 }),
            Some(("host", bytes)) => {
                let token_bytes = bytes.parse().map_err(|_| wrong())?;
                KvShape::small(token_bytes, 1).ok_or_else(wrong)?;
                Ok(MemoryKind::Host { token_bytes })
            }
            Some(("cuda", ordinal)) => Ok(MemoryKind::Cuda { ordinal: ordinal.parse().map_err(|_| wrong())? }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MemoryKind::Modelled => f.write_str("modelled"),
            MemoryKind::Host { token_bytes: TOKEN_BYTES } => f.write_str("host"),
            MemoryKind::Host { token_bytes } => write!(f, "host:{token_bytes}"),
            MemoryKind::Cuda { ordinal: 0 } => f.write_str("cuda"),
            MemoryKind::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Memory for one node after the other, or for many at once.
#[derive(Debug, Clone, Default)]
pub enum MemorySource {
    /// See [`MemoryKind::Modelled`].
    #[default]
    Modelled,
    /// See [`MemoryKind::Host`]: every node has its own.
    Host {
        /// Bytes of a token.
        token_bytes: u32,
    },
    /// One backend, such as a device's, lent to one node at a time.
    Lent(Arc<Lender>),
}

/// Whoever has the one backend, and its shape.
#[derive(Debug)]
pub struct Lender {
    backend: Mutex<Option<Box<dyn MemoryBackend>>>,
    returned: Condvar,
    shape: KvShape,
    pools: Tiers<u32>,
}

impl MemorySource {
    /// A source that lends `backend`, with pools of `engine` and blocks of `shape`, to one node at a time.
    pub fn lend(backend: Box<dyn MemoryBackend>, shape: KvShape, engine: &EngineConfig) -> MemorySource {
        MemorySource::Lent(Arc::new(Lender {
            backend: Mutex::new(Some(backend)),
            returned: Condvar::new(),
            shape,
            pools: blocks_of(engine),
        }))
    }

    /// Whether only one node at a time can have memory.
    pub fn is_exclusive(&self) -> bool {
        matches!(self, MemorySource::Lent(_))
    }

    /// Empty memory for a node of `engine`; `None` if blocks are only numbers. Of what is lent, waits until it is free.
    ///
    /// # Errors
    /// The pools do not fit, or are larger than the backend's.
    pub fn memory(&self, engine: &EngineConfig) -> Result<Option<Memory>, MemoryError> {
        match self {
            MemorySource::Modelled => Ok(None),
            MemorySource::Host { token_bytes } => {
                let shape = KvShape::small(*token_bytes, engine.block_size).ok_or_else(|| {
                    MemoryError::Unsupported(format!("{token_bytes} bytes a token: expected a multiple of 32"))
                })?;
                let backend = HostMemory::new(shape, blocks_of(engine))?;
                Ok(Some(Memory::new(Box::new(backend), shape)))
            }
            MemorySource::Lent(lender) => {
                let is_larger = Tier::ALL.into_iter().any(|tier| engine.num_blocks(tier) > lender.pools[tier]);
                if is_larger || engine.block_size != lender.shape.block_size {
                    let list = |blocks: Tiers<u32>| blocks.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
                    return Err(MemoryError::Unsupported(format!(
                        "a node of {} blocks of {} tokens on a device set up for {} of {}",
                        list(blocks_of(engine)),
                        engine.block_size,
                        list(lender.pools),
                        lender.shape.block_size
                    )));
                }
                let mut lease = Lease::of(lender);
                lease.reset()?;
                Ok(Some(Memory::new(Box::new(lease), lender.shape)))
            }
        }
    }
}

/// What an engine has in each tier.
fn blocks_of(engine: &EngineConfig) -> Tiers<u32> {
    Tiers::from_fn(|tier| engine.num_blocks(tier))
}

/// A lent backend while a node has it; it goes back when dropped.
#[derive(Debug)]
pub struct Lease {
    /// There until it is dropped.
    backend: Option<Box<dyn MemoryBackend>>,
    lender: Arc<Lender>,
}

impl Lease {
    fn of(lender: &Arc<Lender>) -> Lease {
        let slot = lender.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = lender.returned.wait_while(slot, |slot| slot.is_none()).unwrap_or_else(PoisonError::into_inner);
        Lease { backend: slot.take(), lender: Arc::clone(lender) }
    }

    fn backend(&mut self) -> &mut dyn MemoryBackend {
        self.backend.as_mut().expect("it is there until the lease is dropped").as_mut()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.lender.backend.lock().unwrap_or_else(PoisonError::into_inner) = self.backend.take();
        self.lender.returned.notify_one();
    }
}

impl MemoryBackend for Lease {
    fn name(&self) -> String {
        self.backend.as_ref().map(|backend| backend.name()).unwrap_or_default()
    }

    fn contents(&self) -> Contents {
        self.backend.as_ref().map_or(Contents::Drawn, |backend| backend.contents())
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        self.backend().submit(work)
    }

    fn wait(&mut self) -> Result<Option<Micros>, MemoryError> {
        self.backend().wait()
    }

    fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError> {
        self.backend().checksums(tier, blocks, sums)
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.backend().reset()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for text in ["modelled", "host", "host:128", "cuda", "cuda:3"] {
            assert_eq!(text.parse::<MemoryKind>().unwrap().to_string(), text);
        }
        assert_eq!("host:64".parse(), Ok(MemoryKind::Host { token_bytes: 64 }));
        for text in ["", "gpu", "host:", "host:0", "host:33", "host:2097152", "cuda:-1", "cuda:x", "modelled:1"] {
            let error = text.parse::<MemoryKind>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("memory {text:?}: expected modelled, host")), "{error}");
        }
    }

    #[test]
    fn a_device_has_one_node_at_a_time() {
        let shape = KvShape::small(32, 4).unwrap();
        let engine = EngineConfig { block_size: 4, num_gpu_blocks: 8, num_cpu_blocks: 2, ..EngineConfig::default() };
        let source = MemorySource::lend(Box::new(HostMemory::new(shape, blocks_of(&engine)).unwrap()), shape, &engine);
        let first = source.memory(&engine).unwrap().unwrap();
        let waiting = std::thread::spawn({
            let (source, engine) = (source.clone(), engine.clone());
            move || source.memory(&engine).unwrap().is_some()
        });
        drop(first);
        assert!(waiting.join().unwrap());
        let larger = EngineConfig { num_gpu_blocks: 9, ..engine };
        assert!(matches!(source.memory(&larger), Err(MemoryError::Unsupported(_))));
    }
}
