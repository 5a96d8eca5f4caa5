//! `docs/metrics.md`, generated.

use std::fmt::Write as _;

use super::metrics::describe::{self, ALL, Description, Kind};

const HEAD: &str = "\
# Metrics

<!-- Generated from the code; do not edit. `cargo xtask` writes it and CI compares. -->

`fuse-detector run` serves them at `http://127.0.0.1:9838/metrics` (`--listen`), as OpenMetrics 1.0 text. Counters and
histograms start at zero with the agent. Gauges are read at the scrape.

| sample | type | labels | meaning |
|---|---|---|---|
";

const LABELS: &str = "
## Labels

Labels are bounded, because an ordinary user can mount file systems of any name and in any number:

- `fs_type` is `fuse`, `fuse.<subtype>`, `fuseblk` or `fuseblk.<subtype>`. The subtype is whatever the daemon says. The first 128
  different ones are told apart; further ones, and those that are long or hold other characters than letters, digits and
  `._-+`, or that nobody could tell, are `other`.
- `errno` is the error's name. The first 128 pairs of `errno` and `fs_type` are told apart; further ones are `other`, `other`.
- `connection` is a device number. The kernel reuses it, so its series live on, and each vanishes while no connection has the number. At
  most 2,000 connections have series of their own, those with the oldest and the most requests;
  `fuse_detector_connection_series_omitted` says how many have none.
- No label carries a path, a pid or a source. A mount point names the pod's UID on a Kubernetes node, so every pod would
  begin series that Prometheus keeps long after the pod has gone; and its length and content are chosen by whoever mounts.
  `/status` on the same port, and `fuse-detector mounts`, show the mount points of a `connection`; the line that tells of
  a transition names them too.

Counts that come from the kernel programs never go down: when a connection goes, its counts stay in the totals, and a
new connection under the same number adds to them.

## Buckets

";

/// `docs/metrics.md`: every metric with type, labels and meaning.
pub fn reference() -> String {
    let mut text = String::from(HEAD);
    for description in ALL {
        let Description { kind, labels, help, note, name: _, unit: _ } = description;
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let space = if note.is_empty() { "" } else { " " };
        let (sample, kind, labels) = (description.sample(), kind.as_str(), labels.join(", "));
        let _ = writeln!(text, "| `{sample}` | {kind} | {labels} | {help}.{space}{note} |");
    }
    text.push_str(LABELS);
    let buckets: [(&Description, &[f64]); 3] = [
        (&describe::DETECTION, &describe::DETECTION_BUCKETS),
        (&describe::RECOVERY, &describe::RECOVERY_BUCKETS),
        (&describe::OUTAGE, &describe::OUTAGE_BUCKETS),
    ];
    for (description, bounds) in buckets {
        debug_assert_eq!(description.kind, Kind::Histogram);
        let bounds: Vec<String> = bounds.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "- `{}`: {}", description.sample(), bounds.join(", "));
    }
    text
}
