//! The numbers that checks draw: splitmix64, so that a seed means the same everywhere.

use crate::launch::Geometry;
use crate::reference::{Element, mix64};

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(mix64(seed ^ 0x6B76_7469_6465))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix64(self.0)
    }

    /// `low..=high`.
    pub(super) fn range(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    pub(super) fn element(&mut self) -> Element {
        self.one_of(&Element::ALL)
    }

    /// About normal: the sum of four uniforms, scaled to variance one.
    pub(super) fn normal(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| (self.next() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5).sum();
        (sum * 3.0_f64.sqrt()) as f32
    }

    pub(super) fn normals(&mut self, element: Element, count: usize, scale: f32) -> Vec<u16> {
        (0..count).map(|_| element.narrow(scale * self.normal())).collect()
    }

    pub(super) fn bits16(&mut self, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.next() as u16).collect()
    }

    pub(super) fn bits32(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next() as u32).collect()
    }

    /// The first `count` of `0..from` in a random order: distinct.
    pub(super) fn distinct(&mut self, count: usize, from: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..from as u32).collect();
        for i in 0..count {
            let other = i + self.next() as usize % (from - i);
            all.swap(i, other);
        }
        all.truncate(count);
        all
    }

    /// `usual`, or one of the other geometries that a kernel with strides over x (and over y) must get right.
    pub(super) fn geometry(&mut self, usual: Geometry, strides_y: bool, most_threads: u32) -> Geometry {
        if self.coin() {
            return usual;
        }
        let y = if strides_y { self.range(1, 3) } else { 1 };
        let threads = 32 * self.range(1, most_threads / 32);
        Geometry { grid: (self.range(1, 5), y, 1), block: (threads, 1, 1), shared_bytes: 0 }
    }
}
