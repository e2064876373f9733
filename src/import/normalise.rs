//! By what observations were standardised, as moments over all of the features.

use std::path::Path;

use kvtide_runtime::NUM_FEATURES;

use super::layout::{Layout, MEAN, VARIANCE};
use super::manifest::{ImportManifest, Normalise, NormaliseBy, Numbers};
use super::tensors::{TensorFile, values};
use super::{ImportError, Place};
use crate::agent::normalise::{Form, Moments};

/// The moments of a policy whose inputs are the features of these indices; `None` if its observations were taken as they are.
/// Where nothing is said, the moments that `VecNormalize` and Gymnasium's wrappers keep are taken if the file has them.
pub(super) fn moments(
    place: &Place<'_>,
    manifest: &ImportManifest,
    file: &TensorFile,
    inputs: &[usize],
) -> Result<Option<Moments>, ImportError> {
    let by = match &manifest.normalise {
        Some(Normalise::Switch(false)) => return Ok(None),
        None if !file.contains(MEAN) => return Ok(None),
        Some(Normalise::Switch(true)) | None => NormaliseBy {
            mean: Numbers::Tensor(MEAN.to_owned()),
            variance: Some(Numbers::Tensor(VARIANCE.to_owned())),
            deviation: None,
            epsilon: None,
            added_to: None,
            clip: None,
        },
        Some(Normalise::By(by)) => by.clone(),
    };
    let numbers = |field: &str, numbers: &Numbers| column(place, field, numbers, file, &manifest.weights, inputs.len());
    let mean = numbers("mean", &by.mean)?;
    let variance = match (&by.variance, &by.deviation) {
        (Some(variance), None) => numbers("variance", variance)?,
        (None, Some(deviation)) => numbers("deviation", deviation)?.into_iter().map(|value| value * value).collect(),
        _ => return Err(place.refuse("normalise: give either variance or deviation".to_owned())),
    };
    if let Some(variance) = variance.iter().find(|variance| **variance < 0.0) {
        return Err(place.refuse(format!("normalise: a variance is {variance}")));
    }
    let usual = manifest.layout.map_or(Form::OURS, Layout::form);
    let clip = by.clip.map_or(usual.clip, |clip| (clip != 0.0).then_some(clip));
    let form =
        Form { epsilon: by.epsilon.unwrap_or(usual.epsilon), added_to: by.added_to.unwrap_or(usual.added_to), clip };
    let mut moments = Moments { form: (form != Form::OURS).then_some(form), ..Moments::new(NUM_FEATURES) };
    for ((&feature, mean), variance) in inputs.iter().zip(mean).zip(variance) {
        (moments.mean[feature], moments.variance[feature]) = (mean, variance);
    }
    if !moments.is_sound() {
        return Err(
            place.refuse("normalise: epsilon and clip must be numbers above 0 (clip 0: not clipped)".to_owned())
        );
    }
    Ok(Some(moments))
}

fn column(
    place: &Place<'_>,
    field: &str,
    numbers: &Numbers,
    file: &TensorFile,
    path: &Path,
    inputs: usize,
) -> Result<Vec<f64>, ImportError> {
    match numbers {
        Numbers::Tensor(name) => {
            let expected = format!("[{inputs}]");
            let why = format!("one number for each of {inputs} features");
            values(path, name, &file.get(name, &expected)?, &[inputs], &why)
        }
        Numbers::Values(values) if values.len() != inputs => {
            Err(place.refuse(format!("normalise.{field} has {} numbers, must have {inputs}", values.len())))
        }
        Numbers::Values(values) => match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(place.refuse(format!("normalise.{field} holds {value}"))),
            None => Ok(values.clone()),
        },
    }
}
