//! Processors.

use std::str::FromStr;

use super::WordError;

/// A number of processors, 0.01 to 64. Of a fraction, its process's time is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// Virtual processors.
    pub whole: u8,
    /// Thousandths of a processor that they may use together, if that is less.
    pub quota: Option<u32>,
}

impl Cpus {
    /// Returns thousandths of a processor.
    #[must_use]
    pub fn thousandths(self) -> u32 {
        self.quota.unwrap_or(u32::from(self.whole) * 1000)
    }
}

impl FromStr for Cpus {
    type Err = WordError;

    fn from_str(text: &str) -> Result<Self, WordError> {
        let number: f64 = text.parse().map_err(|_| "expected a number")?;
        if !(0.01..=64.0).contains(&number) {
            return Err("expected 0.01 to 64".into());
        }
        let whole = number.ceil();
        let quota = (number * 1000.0).round() as u32;
        Ok(Self {
            whole: whole as u8,
            quota: (number < whole).then_some(quota),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_is_a_share_of_the_time() {
        let cpus = |text: &str| text.parse::<Cpus>();
        let share = |whole, quota| Ok(Cpus { whole, quota });
        assert_eq!(cpus("2"), share(2, None));
        assert_eq!(cpus("1.5"), share(2, Some(1500)));
        assert_eq!(cpus("0.5"), share(1, Some(500)));
        for bad in ["0", "-1", "0.001", "65", "nan", "inf", "x"] {
            cpus(bad).unwrap_err();
        }
    }
}
