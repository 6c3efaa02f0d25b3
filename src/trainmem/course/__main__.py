"""The command line ``python -m trainmem.course``: see `trainmem.course.numbers`."""

from trainmem.course.numbers import main

raise SystemExit(main())
