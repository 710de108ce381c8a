"""What people see: answers and their speed, tables, progress, notebooks."""
