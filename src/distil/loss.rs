//! What distilling costs: how much less a student attains than its teacher, on the same traffic.

use std::sync::atomic::AtomicBool;

use super::{DistilError, Teacher, TeacherPolicy};
use crate::agent::{Attained, Server, Validator};
use crate::bootstrap::{Interval, resampled};

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
pub struct Baseline<'a> {
    validator: &'a Validator,
    teacher: Vec<Attained>,
    stop: &'a AtomicBool,
}

impl<'a> Baseline<'a> {
    /// Plays all episodes of `validator` under `teacher`. Given up, here and later, once `stop` is set.
    ///
    /// # Errors
    /// An episode cannot be played, none has a request, or `stop` was set.
    pub fn of(
        teacher: &dyn Teacher,
        validator: &'a Validator,
        stop: &'a AtomicBool,
    ) -> Result<Baseline<'a>, DistilError> {
        let teacher = validator.attained(&TeacherPolicy(teacher), stop)?.ok_or(DistilError::Stopped)?;
        if !teacher.iter().any(|episode| episode.requests > 0.0) {
            return Err(DistilError::NoRequests);
        }
        Ok(Baseline { validator, teacher, stop })
    }

    /// What `student` loses on the same episodes.
    ///
    /// # Errors
    /// An episode cannot be played, or `stop` was set.
    pub fn loss(&self, student: &(impl Server + ?Sized)) -> Result<Loss, DistilError> {
        let student = self.validator.attained(student, self.stop)?.ok_or(DistilError::Stopped)?;
        Ok(Loss::between(&self.teacher, &student))
    }
}

impl Loss {
    /// Over episodes in pairs, by [`Attained::share`]. How many requests there are is up to the policy where clients wait for
    /// their answers.
    fn between(teacher: &[Attained], student: &[Attained]) -> Loss {
        let pairs: Vec<(Attained, Attained)> = teacher.iter().copied().zip(student.iter().copied()).collect();
        let lost = |pairs: &[&(Attained, Attained)]| {
            let share = |side: fn(&(Attained, Attained)) -> Attained| {
                Attained::share(&pairs.iter().map(|pair| side(pair)).collect::<Vec<Attained>>())
            };
            Some(100.0 * (share(|pair| pair.0) - share(|pair| pair.1)))
        };
        let nothing = Interval::single(0.0);
        Loss {
            teacher: Attained::share(teacher),
            student: Attained::share(student),
            episodes: pairs.len(),
            points: resampled(&pairs, lost).unwrap_or(nothing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_alike_and_the_interval_holds_the_mean() {
        let attained = |requests, on_time| Attained { requests, on_time, world: 0 };
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

    #[test]
    fn serving_more_is_not_attaining_more() {
        let attained = |requests, on_time| Attained { requests, on_time, world: 0 };
        let loss = Loss::between(&[attained(1000.0, 900.0); 3], &[attained(1100.0, 990.0); 3]);
        assert!(loss.points.mean.abs() < 1e-9, "{loss:?}");
        let loss = Loss::between(&[attained(1000.0, 900.0); 3], &[attained(1100.0, 935.0); 3]);
        assert!((loss.points.mean - 5.0).abs() < 1e-9, "{loss:?}");
    }
}
