"""What the programs of bench/ share: contenders, questions, records, intervals and pages."""
