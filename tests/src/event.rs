//! One line of the agent's standard output.

use std::fmt;
use std::path::Path;

use serde_json::Value;

/// A transition as the contract writes it. Kept as JSON: what the tests read is what a machine would.
#[derive(Debug, Clone, PartialEq)]
pub struct Event(Value);

impl Event {
    /// From a line of JSON.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line).map(Self)
    }

    /// The value at a JSON pointer (RFC 6901), `/reason/kind` for example; null where there is none.
    pub fn at(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The text at a JSON pointer; empty where there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.at(pointer).as_str().unwrap_or_default()
    }

    /// The number at a JSON pointer.
    pub fn number(&self, pointer: &str) -> Option<u64> {
        self.at(pointer).as_u64()
    }

    /// `dead`, `recovered`, …
    pub fn kind(&self) -> &str {
        self.text("/event")
    }

    /// `major:minor`.
    pub fn connection(&self) -> &str {
        self.text("/connection")
    }

    /// Its mounts: mount point, root, read-only.
    pub fn mounts(&self) -> Vec<(&str, &str, bool)> {
        let mounts = self.at("/mounts").as_array().map(Vec::as_slice).unwrap_or_default();
        mounts
            .iter()
            .map(|mount| {
                let text = |key| mount.get(key).and_then(Value::as_str).unwrap_or_default();
                (text("mountPoint"), text("root"), mount.get("readOnly").and_then(Value::as_bool).unwrap_or_default())
            })
            .collect()
    }

    /// Whether one of its mounts is at this path.
    pub fn is_at(&self, path: &Path) -> bool {
        self.mounts().iter().any(|(mount_point, ..)| Path::new(mount_point) == path)
    }

    /// Whether one of its mounts is below this path.
    pub fn is_below(&self, path: &Path) -> bool {
        self.mounts().iter().any(|(mount_point, ..)| Path::new(mount_point).starts_with(path))
    }

    /// Whether it is of this kind and at this path.
    pub fn is(&self, kind: &str, path: &Path) -> bool {
        self.kind() == kind && self.is_at(path)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
