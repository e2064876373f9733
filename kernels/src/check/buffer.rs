//! Memory that kernels see: aligned bytes made of plain numbers, with a guard behind outputs.

/// A number with a fixed little-endian form.
pub(super) trait Plain: Copy + PartialEq + std::fmt::Debug {
    const POISON: Self;
    fn put(self, bytes: &mut Vec<u8>);
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($type:ty: $poison:expr),*) => {$(
        impl Plain for $type {
            const POISON: Self = $poison;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("a whole number"))
            }
        }
    )*};
}

plain!(u16: 0xA5A5, u32: 0xA5A5_A5A5, u64: 0xA5A5_A5A5_A5A5_A5A5);

/// Numbers behind an output's end that must stay as they are.
const GUARD: usize = 64;

/// Bytes that start at a multiple of 16.
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    pub(super) fn of<T: Plain>(values: &[T]) -> Self {
        let mut raw = Vec::new();
        for &value in values {
            value.put(&mut raw);
        }
        let mut bytes = vec![0; raw.len() + 15];
        let start = bytes.as_ptr().align_offset(16);
        bytes[start..start + raw.len()].copy_from_slice(&raw);
        bytes.truncate(start + raw.len());
        Self { bytes, start }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    pub(super) fn read<T: Plain>(&self) -> Vec<T> {
        self.bytes().chunks_exact(size_of::<T>()).map(T::get).collect()
    }
}

/// `count` poisoned numbers and a guard.
pub(super) fn poisoned<T: Plain>(count: usize) -> Vec<T> {
    vec![T::POISON; count + GUARD]
}

/// `values` and a guard.
pub(super) fn guarded<T: Plain>(mut values: Vec<T>) -> Vec<T> {
    values.extend([T::POISON; GUARD]);
    values
}

/// All of a buffer, guard and untouched parts too, is as expected.
pub(super) fn same<T: Plain + std::fmt::LowerHex>(what: &str, got: &AlignedBuffer, want: &[T]) -> Result<(), String> {
    let got = got.read::<T>();
    match got.iter().zip(want).position(|(got, want)| got != want) {
        None if got.len() == want.len() => Ok(()),
        None => Err(format!("{what}: {} numbers instead of {}", got.len(), want.len())),
        Some(i) => Err(format!("{what}[{i}] is {:#x}, must be {:#x}", got[i], want[i])),
    }
}
