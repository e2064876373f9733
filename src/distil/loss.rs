//! What distilling costs: how much less a student attains than its teacher, on the same traffic.

use kvtide_runtime::Policy;

use super::{DistilError, Driver, Teacher};
use crate::agent::{Attained, Validator};
use crate::evaluate::{Interval, stratified};

/// How a student does beside its teacher.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Loss {
    /// Share of requests that missed no target under the teacher.
    pub teacher: f64,
    /// The same under the student.
    pub student: f64,
    /// Percentage points lost; negative where the student does better. The interval is of resampled episodes.
    pub points: Interval,
    /// Episodes both have played.
    pub episodes: usize,
}

/// What `teacher` attains, to compare students with.
pub struct Reference<'a> {
    validator: &'a Validator,
    teacher: Vec<Attained>,
}

impl<'a> Reference<'a> {
    /// Plays all episodes of `validator` under `teacher`.
    ///
    /// # Errors
    /// An episode cannot be played.
    pub fn of(teacher: &dyn Teacher, validator: &'a Validator) -> Result<Reference<'a>, DistilError> {
        Ok(Reference { validator, teacher: validator.attained(&Driver(teacher))? })
    }

    /// What `student` loses on the same episodes.
    ///
    /// # Errors
    /// An episode cannot be played.
    pub fn loss(&self, student: &(dyn Policy + Sync)) -> Result<Loss, DistilError> {
        Ok(Loss::between(&self.teacher, &self.validator.attained(student)?))
    }
}

impl Loss {
    /// Over episodes in pairs. Every request counts the same.
    fn between(teacher: &[Attained], student: &[Attained]) -> Loss {
        let pairs: Vec<(Attained, Attained)> = teacher.iter().copied().zip(student.iter().copied()).collect();
        let lost = |pairs: &[&(Attained, Attained)]| {
            let requests: f64 = pairs.iter().map(|(teacher, _)| teacher.requests).sum();
            let lost: f64 = pairs.iter().map(|(teacher, student)| teacher.on_time - student.on_time).sum();
            (requests > 0.0).then(|| 100.0 * lost / requests)
        };
        let nothing = Interval { mean: 0.0, low: None, high: None };
        let share = |attained: &[Attained]| {
            let requests: f64 = attained.iter().map(|episode| episode.requests).sum();
            attained.iter().map(|episode| episode.on_time).sum::<f64>() / requests.max(1.0)
        };
        Loss {
            teacher: share(teacher),
            student: share(student),
            episodes: pairs.len(),
            points: stratified(&[pairs], lost).unwrap_or(nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_alike_and_the_interval_holds_the_mean() {
        let attained = |requests, on_time| Attained { requests, on_time };
        let teacher: Vec<Attained> = (0..20).map(|_| attained(100.0, 90.0)).chain([attained(1000.0, 900.0)]).collect();
        let student: Vec<Attained> =
            (0..20).map(|n| attained(100.0, 90.0 - f64::from(n % 2))).chain([attained(1000.0, 885.0)]).collect();
        let loss = Loss::between(&teacher, &student);
        assert!((loss.teacher - 0.9).abs() < 1e-12 && (loss.points.mean - 100.0 * 25.0 / 3000.0).abs() < 1e-9);
        assert!((loss.teacher - loss.student - loss.points.mean / 100.0).abs() < 1e-12);
        let (low, high) = (loss.points.low.unwrap(), loss.points.high.unwrap());
        assert!(low < loss.points.mean && loss.points.mean < high && low > 0.2 && high < 1.5, "{low} {high}");
        assert_eq!(Loss::between(&teacher, &teacher).points.mean, 0.0);
        assert_eq!(Loss::between(&[], &[]).points.mean, 0.0);
    }
}
