//! Numbers for people.

use std::time::Duration;

/// A duration with two or three significant digits, from microseconds to hours.
pub fn duration(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..10_000 => tenths(micros / 100, "ms"),
        10_000..1_000_000 => format!("{} ms", micros / 1_000),
        1_000_000..60_000_000 => tenths(micros / 100_000, "s"),
        60_000_000..3_600_000_000 => pair(micros / 1_000_000, "min", "s"),
        _ => pair(micros / 60_000_000, "h", "min"),
    }
}

fn tenths(tenths: u128, unit: &str) -> String {
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Sixtieths of a unit, with the unit.
fn pair(small: u128, big_unit: &str, small_unit: &str) -> String {
    match (small / 60, small % 60) {
        (big, 0) => format!("{big} {big_unit}"),
        (big, small) => format!("{big} {big_unit} {small} {small_unit}"),
    }
}

/// `1 request`, `2 requests`.
pub fn count(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {one}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_have_their_unit() {
        for (micros, text) in [
            (0, "0 µs"),
            (74, "74 µs"),
            (1_250, "1.2 ms"),
            (9_999, "9.9 ms"),
            (412_900, "412 ms"),
            (3_450_000, "3.4 s"),
            (125_000_000, "2 min 5 s"),
            (120_000_000, "2 min"),
            (3_780_000_000, "1 h 3 min"),
            (90_000_000_000, "25 h"),
        ] {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1, "request"), "1 request");
        assert_eq!(count(0, "request"), "0 requests");
    }
}
