//! The planner, as the command line and the API have it: documents in, documents out.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;
use serde_json::{Map, Value};
use stoker_planner::slow::{Recorded, verdict};
use stoker_planner::{Calibration, Constants, Inputs, KINDS, Misfit, Model, spec, what_if};

/// All inputs that do not fit, each with what to write instead.
fn refused(misfits: &[Misfit]) -> PyErr {
    let told = misfits.iter().map(|one| match one.hint.is_empty() {
        true => format!("`{}`: {}", one.field, one.message),
        false => format!("`{}`: {} ({})", one.field, one.message, one.hint),
    });
    PyValueError::new_err(told.collect::<Vec<_>>().join("; "))
}

fn printed(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn constants(calibration: Option<&str>) -> PyResult<Constants> {
    let Some(text) = calibration else { return Ok(Constants::default()) };
    Calibration::parse(text).map(Constants::with).map_err(|misfits| refused(&misfits))
}

fn inputs(kind: &str, model: &str, given: &str) -> PyResult<Inputs> {
    let model = Model::parse(model).map_err(|one| refused(&[one]))?;
    let spec = spec(kind, model).map_err(|one| refused(&[one]))?;
    let given: Map<String, Value> =
        serde_json::from_str(given).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Inputs::from_json(spec, &given).map_err(|misfits| refused(&misfits))
}

/// What can be planned: inputs, units, ranges.
#[pyfunction]
pub fn plan_models() -> PyResult<String> {
    let all = KINDS.iter().flat_map(|kind| [Model::Stoker, Model::Lab].map(|model| (kind, model)));
    let described = all.filter_map(|(kind, model)| {
        let mut one = spec(kind, model).ok()?.describe();
        one["model"] = model.word().into();
        Some(one)
    });
    printed(&described.collect::<Vec<Value>>())
}

/// A plan.
#[pyfunction]
#[pyo3(signature = (kind, model, given, calibration = None))]
pub fn plan(kind: &str, model: &str, given: &str, calibration: Option<&str>) -> PyResult<String> {
    printed(&stoker_planner::plan(&inputs(kind, model, given)?, &constants(calibration)?))
}

/// What a change does to a plan; `null` if it does not touch it.
#[pyfunction]
#[pyo3(signature = (kind, given, change, calibration = None))]
pub fn plan_what_if(kind: &str, given: &str, change: &str, calibration: Option<&str>) -> PyResult<String> {
    let inputs = inputs(kind, Model::Stoker.word(), given)?;
    let compared = what_if::compare(&inputs, &constants(calibration)?, change);
    let compared = compared.map_err(|one| refused(&[one]))?;
    printed(&compared.map(|(_, moved)| moved))
}

/// Why a run waited.
#[pyfunction]
#[pyo3(signature = (run, calibration = None))]
pub fn explain_slow(run: &str, calibration: Option<&str>) -> PyResult<String> {
    let run = Recorded::parse(run).map_err(|misfits| refused(&misfits))?;
    printed(&verdict(&run, &constants(calibration)?))
}
