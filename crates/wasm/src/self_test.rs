//! The kernels' self-test, as an object.

use model::device::Place;
use serde::Serialize;

#[derive(Debug, Serialize)]
struct KernelCheck {
    name: String,
    ok: bool,
    error: f64,
    tolerance: f64,
}

/// A `SelfTest`.
#[derive(Debug, Serialize)]
pub struct SelfTest {
    ok: bool,
    checks: Vec<KernelCheck>,
}

/// Runs each kernel on stored inputs.
pub async fn run(place: &Place) -> SelfTest {
    let checks: Vec<KernelCheck> = model::self_test::run(&place.device, place.grid)
        .await
        .into_iter()
        .map(|check| KernelCheck { ok: check.ok(), name: check.name, error: check.error, tolerance: check.tolerance })
        .collect();
    SelfTest { ok: checks.iter().all(|check| check.ok), checks }
}
