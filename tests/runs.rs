//! Golden runs: the losses of a text under a policy, from an independent program, and what they may be off.

use model::Storage;
use model::session::CacheSettings;
use policy::{Packing, Policy, Positions};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A golden file of runs: of `golden/policies.json`'s shape.
#[derive(Debug, Deserialize)]
pub struct Policies {
    pub tokens: Vec<u32>,
    pub runs: BTreeMap<String, Run>,
    pub tolerance: Tolerance,
}

/// How far a mean may be off, in nats.
#[derive(Debug, Deserialize)]
pub struct Tolerance {
    #[serde(rename = "int8 mean")]
    int8: f64,
    #[serde(rename = "int4 mean")]
    int4: f64,
    #[serde(rename = "int2 mean")]
    int2: f64,
}

#[derive(Debug, Deserialize)]
pub struct Run {
    pub settings: RunSettings,
    pub nll: Option<Vec<f64>>,
    pub mean: f64,
    pub sink_mass_per_layer: Option<Vec<f64>>,
}

#[derive(Debug, Deserialize)]
pub struct RunSettings {
    pub policy: String,
    pub sinks: Option<u32>,
    pub recent: Option<u32>,
    pub positions: Option<String>,
    pub kv: Option<String>,
    pub tail: Option<u32>,
    pub sinks_kept_exact: Option<u32>,
}

impl Policies {
    /// The runs in full precision, with their settings.
    pub fn full_precision(&self) -> Vec<(&str, CacheSettings, &Run)> {
        let runs = self.runs.iter().filter(|(_, run)| run.settings.kv.is_none());
        runs.map(|(name, run)| (name.as_str(), run.settings.cache(), run)).collect()
    }

    /// The runs with a packed cache, with their settings and tolerances.
    pub fn packed(&self) -> Vec<(&str, CacheSettings, &Run, f64)> {
        let mut packed = Vec::new();
        for (name, run) in &self.runs {
            let tolerance = match run.settings.kv.as_deref() {
                None => continue,
                Some("int8") => self.tolerance.int8,
                Some("int4") => self.tolerance.int4,
                Some("int2") => self.tolerance.int2,
                Some(other) => panic!("the golden file has a storage `{other}`"),
            };
            packed.push((name.as_str(), run.settings.cache(), run, tolerance));
        }
        packed
    }
}

impl RunSettings {
    fn cache(&self) -> CacheSettings {
        let recent = self.recent.unwrap_or(0);
        let policy = match self.policy.as_str() {
            "dense" => Policy::Dense,
            "window" => Policy::Window { recent },
            "sinks" => Policy::Sinks { sinks: self.sinks.unwrap_or(0), recent },
            other => panic!("the golden file has a policy `{other}`"),
        };
        let positions = match self.positions.as_deref() {
            Some("stream") => Positions::Stream,
            _ => Positions::Slot,
        };
        let storage = self.kv.as_deref().unwrap_or("f32");
        let storage = Storage::named(storage).unwrap_or_else(|| panic!("the golden file has a storage `{storage}`"));
        let packing =
            Packing { tail: self.tail.unwrap_or(32), exact: self.sinks_kept_exact.unwrap_or(0), ..Packing::default() };
        CacheSettings { positions, packing, ..CacheSettings::new(policy) }.stored_as(storage)
    }
}
