//! The order of an epoch, for many positions at once.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use stoker_dataset::order::{self, ROUNDS};

/// Most numbers that are made by one call.
const NUMBERS_MAX: u64 = 1 << 28;

/// Numbers of samples, as a plan hands them on.
#[pyclass(frozen)]
pub struct Samples(pub Vec<u64>);

#[pymethods]
impl Samples {
    #[new]
    fn new(numbers: Vec<u64>) -> Samples {
        Samples(numbers)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn tolist(&self) -> Vec<u64> {
        self.0.clone()
    }
}

/// A permutation of the numbers below a count.
#[pyclass(frozen)]
pub struct Permutation(order::Permutation);

#[pymethods]
impl Permutation {
    #[new]
    fn new(count: u64, keys: [u64; ROUNDS]) -> PyResult<Permutation> {
        order::Permutation::new(count, keys).map(Permutation).ok_or_else(|| too_many(count))
    }

    fn at(&self, position: u64) -> PyResult<u64> {
        self.0.at(position).ok_or_else(|| outside(position, self.0.count()))
    }

    fn position_of(&self, element: u64) -> PyResult<u64> {
        self.0.position_of(element).ok_or_else(|| outside(element, self.0.count()))
    }
}

fn too_many(count: u64) -> PyErr {
    PyValueError::new_err(format!("a permutation has 0 to {} elements, not {count}", order::ELEMENTS_MAX))
}

fn outside(position: impl std::fmt::Display, count: u64) -> PyErr {
    PyIndexError::new_err(format!("position {position} of an epoch of {count} samples"))
}

/// The order of one epoch; without keys that of the dataset.
#[pyclass(frozen)]
pub struct Order(order::Order);

#[pymethods]
impl Order {
    #[new]
    #[pyo3(signature = (count, block=1, keys=None))]
    fn new(count: u64, block: u64, keys: Option<([u64; ROUNDS], [u64; ROUNDS])>) -> PyResult<Order> {
        let made = match keys {
            None => (count <= order::ELEMENTS_MAX).then_some(order::Order::Plain(count)),
            Some((keys, shift_keys)) => order::Order::shuffled(count, block, keys, shift_keys),
        };
        made.map(Order).ok_or_else(|| too_many(count))
    }

    /// The samples at positions.
    fn samples(&self, py: Python<'_>, positions: Vec<i64>) -> PyResult<Samples> {
        let find = |at: i64| u64::try_from(at).ok().and_then(|at| self.0.sample(at)).ok_or(at);
        let found = py.detach(|| positions.into_iter().map(find).collect::<Result<_, _>>());
        found.map(Samples).map_err(|at| outside(at, self.0.count()))
    }

    /// The samples at runs of positions: start, length, distance to the next, how many.
    fn runs(&self, py: Python<'_>, runs: Vec<(u64, u64, u64, u64)>) -> PyResult<Samples> {
        let mut total: u64 = 0;
        for (start, len, stride, times) in &runs {
            let last = times.saturating_sub(1).checked_mul(*stride).and_then(|far| far.checked_add(*start));
            let is_inside =
                last.and_then(|last| last.checked_add(*len)).is_some_and(|end| end <= self.0.count());
            if !is_inside {
                return Err(outside(start.saturating_add(*len), self.0.count()));
            }
            total = total.saturating_add(len.saturating_mul(*times));
        }
        if total > NUMBERS_MAX {
            return Err(PyValueError::new_err(format!(
                "{total} positions at once are more than {NUMBERS_MAX}"
            )));
        }
        let found = py.detach(|| {
            let positions = runs.into_iter().flat_map(|(start, len, stride, times)| {
                (0..times).flat_map(move |time| start + time * stride..start + time * stride + len)
            });
            positions.map(|at| self.0.sample(at)).collect::<Option<Vec<u64>>>()
        });
        found.map(Samples).ok_or_else(|| outside("behind the last", self.0.count()))
    }
}
