//! The result: kernels by scenarios, one table for each backend.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::suite::{Outcome, Test};

/// Above the table of tests that are written for one backend, or for none.
const NO_BACKEND: &str = "tests with a backend of their own";

/// What was found out.
#[derive(Default)]
pub struct Matrix {
    /// Each boot's name, in the order in which they were made.
    boots: Vec<String>,
    /// By backend, then by scenario, then by boot.
    cells: BTreeMap<Option<String>, BTreeMap<String, BTreeMap<usize, Outcome>>>,
}

impl Matrix {
    /// A further boot; what is added afterwards is its.
    pub fn boot(&mut self, name: &str) {
        self.boots.push(name.to_owned());
    }

    /// What became of a test in the latest boot.
    pub fn add(&mut self, test: &Test, outcome: Outcome) {
        let boot = self.boots.len().saturating_sub(1);
        let table = self.cells.entry(test.backend().map(str::to_owned)).or_default();
        table.entry(test.scenario()).or_default().insert(boot, outcome);
    }

    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.outcomes().all(|(.., outcome)| !matches!(outcome, Outcome::Failed(_)))
    }

    fn outcomes(&self) -> impl Iterator<Item = (usize, Option<&str>, &str, &Outcome)> {
        self.cells.iter().flat_map(|(backend, table)| {
            table.iter().flat_map(move |(scenario, row)| {
                row.iter().map(move |(boot, outcome)| (*boot, backend.as_deref(), scenario.as_str(), outcome))
            })
        })
    }

    fn table(&self, f: &mut fmt::Formatter<'_>, backend: Option<&str>) -> fmt::Result {
        let Some(table) = self.cells.get(&backend.map(str::to_owned)) else { return Ok(()) };
        // A boot in which none of them was to run has no column.
        let used: BTreeSet<usize> = table.values().flat_map(BTreeMap::keys).copied().collect();
        let title = backend.map_or(NO_BACKEND.to_owned(), |backend| format!("backend {backend}"));
        let width = table.keys().map(String::len).chain([title.len()]).max().unwrap_or_default();
        let mut head = format!("{title:<width$}");
        for boot in &used {
            write!(head, "  {:>8}", self.boots[*boot])?;
        }
        writeln!(f, "{head}")?;
        for (scenario, row) in table {
            write!(f, "{scenario:<width$}")?;
            for boot in &used {
                write!(f, "  {:>1$}", row.get(boot).map_or("-", word), self.boots[*boot].len().max(8))?;
            }
            writeln!(f)?;
        }
        writeln!(f)
    }

    /// Why something did not pass, and where: each reason once.
    fn reasons(&self) -> BTreeMap<(&'static str, &str), BTreeMap<&str, BTreeSet<String>>> {
        let mut reasons: BTreeMap<_, BTreeMap<_, BTreeSet<_>>> = BTreeMap::new();
        for (boot, backend, scenario, outcome) in self.outcomes() {
            if let Outcome::Cannot(why) | Outcome::Failed(why) = outcome {
                let test = backend.map_or(scenario.to_owned(), |backend| format!("{scenario}::{backend}"));
                let boots: &mut BTreeMap<_, BTreeSet<_>> = reasons.entry((word(outcome), why.as_str())).or_default();
                boots.entry(self.boots[boot].as_str()).or_default().insert(test);
            }
        }
        reasons
    }
}

const fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "pass",
        Outcome::Failed(_) => "FAIL",
        Outcome::Cannot(_) => "cannot",
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for backend in self.cells.keys() {
            self.table(f, backend.as_deref())?;
        }
        for ((word, why), boots) in self.reasons() {
            writeln!(f, "{word}: {why}")?;
            for (boot, tests) in boots {
                let named: Vec<&str> = tests.iter().map(String::as_str).take(3).collect();
                let more = tests.len().saturating_sub(named.len());
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                writeln!(f, "    {boot}: {}{more}", named.join(", "))?;
            }
        }
        let count = |wanted: &str| self.outcomes().filter(|(.., outcome)| word(outcome) == wanted).count();
        writeln!(f, "{} passed, {} failed, {} cannot run there", count("pass"), count("FAIL"), count("cannot"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(program: &str, name: &str) -> Test {
        Test { program: program.into(), name: name.into() }
    }

    #[test]
    fn each_backend_has_a_table_with_the_kernels_that_it_was_tried_on() {
        let mut matrix = Matrix::default();
        matrix.boot("5.10");
        matrix.add(&test("death", "idle::portable"), Outcome::Passed);
        matrix.add(&test("death", "idle::tracepoint"), Outcome::Cannot("no BTF".into()));
        assert!(matrix.passed());
        matrix.boot("5.10 locked");
        matrix.add(&test("death", "idle::tracepoint"), Outcome::Failed("exit code 101".into()));
        matrix.add(&test("watch", "ends"), Outcome::Passed);
        assert!(!matrix.passed());
        let expected = "\
tests with a backend of their own  5.10 locked
watch::ends                               pass

backend portable      5.10
death::idle           pass

backend tracepoint      5.10  5.10 locked
death::idle           cannot         FAIL

FAIL: exit code 101
    5.10 locked: death::idle::tracepoint
cannot: no BTF
    5.10: death::idle::tracepoint
2 passed, 1 failed, 1 cannot run there
";
        assert_eq!(matrix.to_string(), expected);
    }
}
